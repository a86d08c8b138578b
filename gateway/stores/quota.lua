-- Quotas below one organisation: one call checks or changes all scopes of a request, or none.
-- All keys carry the organisation's hash tag, all time is the server's, every operation is idempotent by id.
-- The lines of the other quota_*.lua stand before these, and REMEMBER_MS: for how long after its end an id stays known.
--
-- KEYS 1 leases       zset  id -> end of the lease (ms)
--      2 reservations hash  id -> packed record while open, 'e' its lease ran out, 's' settled (tombstone)
--      3 ended        zset  id -> when it stopped being open (ms), to forget it later
--      4 counters     hash  scope -> packed counter
--      5.. reserve: the idempotency key, the tenant's usage; settle: the mark of the batches, then idempotency key,
--      ending key and usage of each item; renew: the idempotency key of each item; usage: the tenant's
-- ARGV 1 operation; the rest is told where it is read
--
-- record: { n, prompt, output, used, scope, day, month, scope, day, month, ... }

local leases, reservations, ended, counters = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local KEEP_MS = 40 * DAY_MS -- Longer than a month, so that its budget lives as long as it counts.
local MAX_REAPED = 256
local NOTHING = amounts_of(0, 0)

local loaded = {}

-- Read counters at once; what was loaded before may have changed since and stays.
local function load_all(names)
  local missing = {}
  for _, name in ipairs(names) do
    missing[#missing + 1] = not loaded[name] and name or nil
  end
  for index, packed in ipairs(#missing > 0 and redis.call('HMGET', counters, unpack(missing)) or {}) do
    loaded[missing[index]] = packed and cmsgpack.unpack(packed) or new_counter()
  end
end

local function counter_of(name)
  if not loaded[name] then
    load_all({ name })
  end
  return loaded[name]
end

-- Every key gets its expiry in the script that writes it: a crash leaves nothing behind for ever.
local function save()
  local fields = {}
  for name, counter in pairs(loaded) do
    fields[#fields + 1], fields[#fields + 2] = name, cmsgpack.pack(counter)
    if #fields > 200 then
      redis.call('HSET', counters, unpack(fields))
      fields = {}
    end
  end
  if #fields > 0 then
    redis.call('HSET', counters, unpack(fields))
  end
  for key = 1, 4 do
    redis.call('PEXPIRE', KEYS[key], KEEP_MS)
  end
end

-- Returns the record of an open reservation, or nil and what is known of the id.
local function find(id)
  local packed = redis.call('HGET', reservations, id)
  if packed and #packed > 1 then
    return cmsgpack.unpack(packed)
  end
  return nil, packed
end

local function open(id, record, lease_ms)
  redis.call('HSET', reservations, id, cmsgpack.pack(record))
  redis.call('ZADD', leases, now + lease_ms, id)
end

local function close(id, state)
  redis.call('HSET', reservations, id, state)
  redis.call('ZREM', leases, id)
  redis.call('ZADD', ended, now, id)
end

-- Calls visit(counter, day, month) for each scope of a record.
local function each_scope(record, visit)
  for index = 5, #record, 3 do
    visit(counter_of(record[index]), record[index + 1], record[index + 2])
  end
end

local function take(record)
  local amounts = amounts_of(record[2], record[3])
  each_scope(record, function(counter, day, month)
    hold(counter, 1, record[1], amounts[2])
    charge(counter, day, month, amounts, NOTHING)
  end)
end

-- Charge what was used in place of the worst case; nothing of the record is open any more.
local function give_back(record, used)
  local amounts = amounts_of(record[2], record[3])
  each_scope(record, function(counter, day, month)
    hold(counter, -1, record[1], amounts[2])
    charge(counter, day, month, used, amounts)
    spend(counter, day, month, used[2] - record[4])
  end)
end

-- Calls visit(name, zone) for each scope of a text "name NUL zone NUL ...".
local function each_name(scopes, visit)
  for name, zone in string.gmatch(scopes, '(%Z+)%z(%Z+)%z') do
    visit(name, tonumber(zone))
  end
end

-- A record of a request that begins now, as far as its scopes go.
local function new_record(n, prompt, output, scopes)
  local record = { n, prompt, output, 0 }
  each_name(scopes, function(name, zone)
    local day, month = enter(counter_of(name), zone)
    record[#record + 1], record[#record + 2], record[#record + 3] = name, day, month
  end)
  return record
end

local function reap()
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', leases, '-inf', now, 'LIMIT', 0, MAX_REAPED)) do
    local record = find(id)
    if record then
      give_back(record, NOTHING)
    end
    close(id, 'e')
  end
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', ended, '-inf', now - REMEMBER_MS, 'LIMIT', 0, MAX_REAPED)) do
    redis.call('HDEL', reservations, id)
    redis.call('ZREM', ended, id)
  end
end

-- Per scope what is left of each bucket, its leases, and charged and spent of its day and month: packed, since many
-- numbers in a reply take longer than the rest of the call.
local function limit_status(names)
  local parts = {}
  for index, name in ipairs(names) do
    local c = loaded[name]
    local b = BUCKETS
    parts[index] = struct.pack('<ddddddddd', c[b[1]], c[b[2]], c[b[3]], c[b[4]], c[HELD],
      c[DAY + 1], c[DAY + 2], c[MONTH + 1], c[MONTH + 2])
  end
  return table.concat(parts)
end

local operations = {}

-- id, n, prompt, output, lease ms, has key (0/1), field of the usage, scopes (see each_name), then limits_of each
function operations.reserve()
  local id, n, prompt, output = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
  local has_key = ARGV[7] == '1'
  local record, state = find(id)
  if record or state then
    return { record and 'ok' or 'over' }
  end
  local owner = has_key and redis.call('GET', KEYS[5])
  if owner and owner ~= id then
    return { 'duplicate', owner }
  end
  local names = {}
  each_name(ARGV[9], function(name)
    names[#names + 1] = name
  end)
  load_all(names)
  record = new_record(n, prompt, output, ARGV[9])
  local amounts, refusal = amounts_of(prompt, output), nil
  for scope, name in ipairs(names) do
    check(loaded[name], limits_of(ARGV[9 + scope]), n, amounts, function(which, limit, used, wait_ms)
      -- What has to be waited for longest is told, so that one wait is enough.
      if not refusal or (refusal[6] ~= NEVER and (wait_ms == NEVER or wait_ms > refusal[6])) then
        refusal = { 'refused', scope - 1, which - 1, limit, used, wait_ms }
      end
    end)
  end
  if refusal then
    note_refused(KEYS[6], ARGV[8], refusal[3] + 1)
    refusal[7] = limit_status(names)
    return refusal
  end
  take(record)
  open(id, record, tonumber(ARGV[6]))
  if has_key then
    redis.call('SET', KEYS[5], id, 'PX', REMEMBER_MS)
  end
  return { 'ok', limit_status(names) }
end

-- number of the batch (0: none), then items of id, prompt, output (both as used), has key (0/1), ending, scopes, field
-- of the usage, cached tokens, page-milliseconds, cost in units and its rest in billionths
function operations.settle()
  local num_settled, number = 0, tonumber(ARGV[2])
  if number > 0 and came_before(KEYS[5], number) then
    return { 'ok', 0 }
  end
  for item = 0, (#ARGV - 2) / 11 - 1 do
    local id, prompt, output, has_key, ending, scopes = unpack(ARGV, 3 + item * 11, 8 + item * 11)
    local split, cached, page_ms, units, nanos = unpack(ARGV, 9 + item * 11, 13 + item * 11)
    local key, ending_key, usage = unpack(KEYS, 6 + item * 3, 8 + item * 3)
    local amounts = amounts_of(tonumber(prompt), tonumber(output))
    local record, state = find(id)
    if state ~= 's' then
      if has_key == '1' and amounts[2] == 0 then
        disown(key, id)
      elseif has_key == '1' and not owns(key, id) then
        amounts = NOTHING -- Another began under its key while the store did not know of this one.
      end
      if record then
        give_back(record, amounts)
      elseif amounts[2] > 0 then
        -- What the store had forgotten or given back is charged all the same.
        each_scope(new_record(0, 0, 0, scopes), function(counter, day, month)
          charge(counter, day, month, amounts, NOTHING)
          spend(counter, day, month, amounts[2])
        end)
      end
      close(id, 's')
      num_settled = num_settled + 1
      if amounts[2] > 0 then
        note_used(usage, split, { 1, prompt - cached, cached, output, page_ms, units, nanos })
      end
      if ending ~= '' then
        redis.call('SET', ending_key, ending, 'PX', REMEMBER_MS)
      end
    end
  end
  return { 'ok', num_settled }
end

-- lease ms, then items of id, n, prompt, output, used so far, scopes, has key (0/1): reservations whose requests run.
-- One that ran out, or that the store lost, is open again whatever the limits say, because it does run.
-- Returns for each scope what was spent of its day and of its month.
function operations.renew()
  local seen, spent = {}, {}
  for item = 0, (#ARGV - 2) / 7 - 1 do
    local id, n, prompt, output, used, scopes, has_key = unpack(ARGV, 3 + item * 7, 9 + item * 7)
    local record, state = find(id)
    if state ~= 's' then
      if has_key == '1' then
        owns(KEYS[5 + item], id)
      end
      if not record then
        record = new_record(tonumber(n), tonumber(prompt), tonumber(output), scopes)
        take(record)
        redis.call('ZREM', ended, id)
      end
      each_scope(record, function(counter, day, month)
        spend(counter, day, month, tonumber(used) - record[4])
      end)
      record[4] = tonumber(used)
      open(id, record, tonumber(ARGV[2]))
    end
    seen[scopes] = true
  end
  for scopes in pairs(seen) do
    each_name(scopes, function(name, zone)
      local counter = counter_of(name)
      enter(counter, zone)
      spent[#spent + 1] = { name, counter[DAY + 2], counter[MONTH + 2] }
    end)
  end
  return { 'ok', spent }
end

-- days since 1970
function operations.usage()
  return usage_on(KEYS[5], { unpack(ARGV, 2) })
end

-- scopes, then limits_of each
function operations.use()
  local uses, number = {}, 2
  each_name(ARGV[2], function(name, zone)
    number = number + 1
    local counter, limits, left = counter_of(name), limits_of(ARGV[number]), {}
    enter(counter, zone)
    for index, bucket in ipairs(BUCKETS) do
      local level = level_of(counter, bucket, limits.capacity[index], limits.per_minute[index])
      left[index] = level ~= math.huge and math.floor(level)
    end
    uses[#uses + 1] = { counter[HELD], counter[RESERVED], left, { unpack(counter, DAY, MONTH + 2) } }
  end)
  return uses
end

-- A renewal that comes late but before anybody saw it keeps its lease.
if ARGV[1] ~= 'renew' then
  reap()
end
local reply = operations[ARGV[1]]()
save()
return reply
