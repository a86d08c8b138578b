-- Quotas below one organisation: one call checks or changes all scopes of a request, or none.
-- All keys carry the organisation's hash tag, all time is the server's, every operation is idempotent by id.
-- The lines of quota_counters.lua stand before these.
--
-- KEYS 1 leases       zset  id -> end of the lease (ms)
--      2 reservations hash  id -> packed record while open, 'e' its lease ran out, 's' settled (tombstone)
--      3 ended        zset  id -> when it stopped being open (ms), to forget it later
--      4 counters     hash  scope -> packed counter
--      5.. reserve: the idempotency key; settle: idempotency key and ending key of each item
-- ARGV 1 operation  2 its values as JSON; what is absent there is not limited  3.. settle: endings
--
-- record: { n, prompt, output, used, scopes = { { name, began = { day, month } } } }

local leases, reservations, ended, counters = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local values = cjson.decode(ARGV[2])
local REMEMBER_MS = 600000
local KEEP_MS = 40 * DAY_MS -- Longer than a month, so that its budget lives as long as it counts.
local RETRY_MS = 1000 -- When a slot or a reservation comes back is not known.
local MAX_REAPED = 256
local NEVER = -1

local loaded = {}

local function counter_of(name)
  if not loaded[name] then
    local packed = redis.call('HGET', counters, name)
    loaded[name] = packed and cmsgpack.unpack(packed) or new_counter()
  end
  return loaded[name]
end

-- All at once; what was loaded before may have changed since and stays.
local function load_all(scopes)
  local names = {}
  for _, scope in ipairs(scopes) do
    names[#names + 1] = not loaded[scope.name] and scope.name or nil
  end
  for index, packed in ipairs(#names > 0 and redis.call('HMGET', counters, unpack(names)) or {}) do
    loaded[names[index]] = packed and cmsgpack.unpack(packed) or new_counter()
  end
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
  redis.call('ZREM', ended, id)
end

local function close(id, state)
  redis.call('HSET', reservations, id, state)
  redis.call('ZREM', leases, id)
  redis.call('ZADD', ended, now, id)
end

local NOTHING = amounts_of(0, 0)

local function take(record)
  local amounts = amounts_of(record.prompt, record.output)
  for _, scope in ipairs(record.scopes) do
    local counter = counter_of(scope.name)
    hold(counter, 1, record.n, amounts.tokens)
    charge(counter, scope.began, amounts, NOTHING)
  end
end

-- Charge what was used in place of the worst case; nothing of the record is open any more.
local function give_back(record, used)
  local amounts = amounts_of(record.prompt, record.output)
  for _, scope in ipairs(record.scopes) do
    local counter = counter_of(scope.name)
    hold(counter, -1, record.n, amounts.tokens)
    charge(counter, scope.began, used, amounts)
    spend(counter, scope.began, used.tokens - record.used)
  end
end

local function began_now(scopes)
  local began = {}
  for index, scope in ipairs(scopes) do
    began[index] = { name = scope.name, began = periods_now(scope.zone) }
  end
  return began
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

local operations = {}

-- Calls refuse(limit's name, limit, used, wait ms) for each limit of the scope that does not cover the request.
local function check(scope, counter, n, amounts, refuse)
  local most = scope.concurrency
  if most and counter.held + n > most then
    refuse('concurrency', most, counter.held, n > most and NEVER or RETRY_MS)
  end
  for _, kind in ipairs(KINDS) do
    local limit = scope[kind]
    if limit then
      local bucket, need = bucket_of(counter, kind, limit.capacity, limit.per_minute), amounts[kind]
      if need > bucket.level then
        local can_come = need <= bucket.capacity and limit.per_minute > 0
        local wait_ms = can_come and math.ceil((need - bucket.level) * 60000 / limit.per_minute) or NEVER
        refuse(kind, limit.capacity, math.ceil(bucket.capacity - bucket.level), wait_ms)
      end
    end
  end
  for _, period in ipairs(PERIODS) do
    local budget, entry = scope[period], period_of(counter, period, scope.began[period])
    scope.began[period] = entry.number -- A zone that moved west does not begin a day twice.
    if budget and budget.hard and entry.charged + amounts.tokens > budget.tokens then
      local is_spent = entry.spent + amounts.tokens > budget.tokens
      local wait_ms = is_spent and ms_to_end_of(period, entry.number, scope.zone) or RETRY_MS
      refuse(period, budget.tokens, entry.charged, amounts.tokens > budget.tokens and NEVER or wait_ms)
    end
  end
end

-- id, n, prompt, output, lease_ms, has_key, scopes of { name, zone, concurrency, KINDS -> { capacity,
-- per_minute }, PERIODS -> { tokens, hard } }
function operations.reserve()
  local id, n, scopes = values.id, values.n, values.scopes
  local record, state = find(id)
  if record or state then
    return { record and 'ok' or 'over', now }
  end
  local owner = values.has_key and redis.call('GET', KEYS[5])
  if owner and owner ~= id then
    return { 'duplicate', owner }
  end
  load_all(scopes)
  local amounts = amounts_of(values.prompt, values.output)
  local refusal
  for index, scope in ipairs(scopes) do
    scope.began = periods_now(scope.zone)
    check(scope, loaded[scope.name], n, amounts, function(name, limit, used, wait_ms)
      -- What has to be waited for longest is told, so that one wait is enough.
      if not refusal or (refusal[6] ~= NEVER and (wait_ms == NEVER or wait_ms > refusal[6])) then
        refusal = { 'refused', index - 1, name, limit, used, wait_ms }
      end
    end)
  end
  if refusal then
    return refusal
  end
  local began = {}
  for index, scope in ipairs(scopes) do
    began[index] = { name = scope.name, began = scope.began }
  end
  record = { n = n, prompt = values.prompt, output = values.output, used = 0, scopes = began }
  take(record)
  open(id, record, values.lease_ms)
  if values.has_key then
    redis.call('SET', KEYS[5], id, 'PX', REMEMBER_MS)
  end
  return { 'ok', now }
end

-- items of { id, prompt, output, has_key, scopes of { name, zone } }; prompt and output as used
function operations.settle()
  local num_settled = 0
  for index, item in ipairs(values.items) do
    local id, key, ending_key, ending = item.id, KEYS[3 + index * 2], KEYS[4 + index * 2], ARGV[2 + index]
    local record, state = find(id)
    if state ~= 's' then
      local amounts = amounts_of(item.prompt, item.output)
      if record then
        give_back(record, amounts)
      elseif amounts.tokens > 0 then
        -- What the store had forgotten or given back is charged all the same.
        for _, scope in ipairs(began_now(item.scopes)) do
          charge(counter_of(scope.name), scope.began, amounts, NOTHING)
          spend(counter_of(scope.name), scope.began, amounts.tokens)
        end
      end
      close(id, 's')
      num_settled = num_settled + 1
      if ending ~= '' then
        redis.call('SET', ending_key, ending, 'PX', REMEMBER_MS)
      end
      -- What cost nothing may be asked for again under the same key.
      if item.has_key and amounts.tokens == 0 and redis.call('GET', key) == id then
        redis.call('DEL', key)
      end
    end
  end
  return { 'ok', now, num_settled }
end

-- lease_ms, items of { id, n, prompt, output, used, scopes of { name, zone } }: reservations whose requests run,
-- with the tokens they used so far. One that ran out, or that the store lost, is open again whatever the limits
-- say, because it does run. Returns for each scope what was spent of its day and of its month.
function operations.renew()
  local zones = {}
  for _, item in ipairs(values.items) do
    local record, state = find(item.id)
    if state ~= 's' then
      if not record then
        record = { n = item.n, prompt = item.prompt, output = item.output, used = 0, scopes = began_now(item.scopes) }
        take(record)
      end
      for _, scope in ipairs(record.scopes) do
        spend(counter_of(scope.name), scope.began, item.used - record.used)
      end
      record.used = item.used
      open(item.id, record, values.lease_ms)
    end
    for _, scope in ipairs(item.scopes) do
      zones[scope.name] = scope.zone
    end
  end
  local spent = {}
  for name, zone in pairs(zones) do
    local counter, began = counter_of(name), periods_now(zone)
    spent[#spent + 1] = {
      name,
      period_of(counter, 'day', began.day).spent,
      period_of(counter, 'month', began.month).spent,
    }
  end
  return { 'ok', now, spent }
end

-- scopes as in reserve
function operations.use()
  local uses = {}
  load_all(values.scopes)
  for index, scope in ipairs(values.scopes) do
    local counter, began, left = loaded[scope.name], periods_now(scope.zone), {}
    for _, kind in ipairs(KINDS) do
      local limit = scope[kind]
      left[#left + 1] = limit and math.floor(bucket_of(counter, kind, limit.capacity, limit.per_minute).level) or false
    end
    local day, month = period_of(counter, 'day', began.day), period_of(counter, 'month', began.month)
    uses[index] = { counter.held, counter.reserved, left, { day.charged, day.spent, month.charged, month.spent } }
  end
  return uses
end

-- A renewal that comes late but before anybody saw it keeps its lease.
if ARGV[1] ~= 'renew' then
  reap()
end
local reply = operations[ARGV[1]]()
save()
return reply
