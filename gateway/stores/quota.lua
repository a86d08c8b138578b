-- One tenant's quota: concurrency leases, a token bucket, reservations settled exactly once.
-- All keys carry the tenant's hash tag, all time is the server's, every operation is idempotent by id.
--
-- KEYS 1 leases       zset  "id#choice" -> end of the lease (ms)
--      2 reservations hash  id -> "o|tokens|n" open, "e|tokens|n" its lease ran out, "s" settled (tombstone)
--      3 ended        zset  id -> when it stopped being open (ms), to forget it later
--      4 bucket       hash  level, at (ms), size (tokens a minute)
--      5.. reserve: the idempotency key; settle: idempotency key and ending key of each item
-- ARGV 1 operation; the rest is named where it is read.

local leases, reservations, ended, bucket = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local REMEMBER_MS = 600000
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

local function parse(state)
  local kind, tokens, n = string.match(state, '^(%a)|(%d+)|(%d+)$')
  return kind or state, tonumber(tokens), tonumber(n)
end

local function write(id, kind, tokens, n)
  redis.call('HSET', reservations, id, kind == 's' and 's' or (kind .. '|' .. tokens .. '|' .. n))
  if kind == 'o' then
    redis.call('ZREM', ended, id)
  else
    redis.call('ZADD', ended, now, id)
  end
end

local function hold(id, n, lease_ms)
  for choice = 0, n - 1 do
    redis.call('ZADD', leases, now + lease_ms, id .. '#' .. choice)
  end
end

local function reap()
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', leases, '-inf', now)) do
    redis.call('ZREM', leases, member)
    local id = string.match(member, '^(.*)#%d+$')
    local kind, tokens, n = parse(redis.call('HGET', reservations, id) or 's')
    if kind == 'o' then
      write(id, 'e', tokens, n)
    end
  end
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', ended, '-inf', now - REMEMBER_MS, 'LIMIT', 0, 128)) do
    redis.call('HDEL', reservations, id)
    redis.call('ZREM', ended, id)
  end
end

local function level(size)
  local held = redis.call('HMGET', bucket, 'level', 'at')
  if not held[1] or not held[2] then
    return size
  end
  return math.min(size, tonumber(held[1]) + math.max(0, now - tonumber(held[2])) * size / 60000)
end

local function set_level(value, size)
  redis.call('HSET', bucket, 'level', string.format('%.3f', value), 'at', now, 'size', size)
end

-- Every key gets its expiry in the script that writes it: a crash leaves nothing behind for ever.
local function keep()
  for key = 1, 4 do
    redis.call('PEXPIRE', KEYS[key], 2 * REMEMBER_MS)
  end
end

local operations = {}

-- id, n, tokens, most concurrent, tokens a minute, lease ms, has idempotency key (0/1)
function operations.reserve()
  local id, n, tokens = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
  local most, size, lease_ms, has_key = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8] == '1'
  local state = redis.call('HGET', reservations, id)
  if state then
    return { parse(state) == 'o' and 'ok' or 'over' }
  end
  local owner = has_key and redis.call('GET', KEYS[5])
  if owner and owner ~= id then
    return { 'duplicate', owner }
  end
  local held = redis.call('ZCARD', leases)
  if held + n > most then
    return { 'concurrency', held }
  end
  local left = level(size)
  if tokens > left then
    local wait_ms = tokens > size and -1 or math.ceil((tokens - left) * 60000 / size)
    return { 'tokens', math.floor(left), wait_ms }
  end
  set_level(left - tokens, size)
  hold(id, n, lease_ms)
  write(id, 'o', tokens, n)
  if has_key then
    redis.call('SET', KEYS[5], id, 'PX', REMEMBER_MS)
  end
  return { 'ok' }
end

-- Items of id, used tokens, ending, has idempotency key (0/1)
function operations.settle()
  local num_settled = 0
  for item = 0, (#ARGV - 1) / 4 - 1 do
    local id, used, ending, has_key = ARGV[2 + item * 4], tonumber(ARGV[3 + item * 4]), ARGV[4 + item * 4], ARGV[5 + item * 4]
    local key, ending_key = KEYS[5 + item * 2], KEYS[6 + item * 2]
    local kind, tokens, n = parse(redis.call('HGET', reservations, id) or 'none')
    if kind ~= 's' then
      if tokens then
        for choice = 0, n - 1 do
          redis.call('ZREM', leases, id .. '#' .. choice)
        end
        local size = tonumber(redis.call('HGET', bucket, 'size') or tokens)
        set_level(math.min(size, level(size) + tokens - used), size)
        num_settled = num_settled + 1
      end
      write(id, 's')
      if ending ~= '' then
        redis.call('SET', ending_key, ending, 'PX', REMEMBER_MS)
      end
      -- What cost nothing may be asked for again under the same key.
      if has_key == '1' and used == 0 and redis.call('GET', key) == id then
        redis.call('DEL', key)
      end
    end
  end
  return { 'ok', num_settled }
end

-- lease ms, ids...
function operations.renew()
  for index = 3, #ARGV do
    local id = ARGV[index]
    local kind, tokens, n = parse(redis.call('HGET', reservations, id) or 's')
    if kind == 'o' or kind == 'e' then
      write(id, 'o', tokens, n)
      hold(id, n, tonumber(ARGV[2]))
    end
  end
  return { 'ok' }
end

-- tokens a minute
function operations.use()
  local reserved = 0
  for _, state in ipairs(redis.call('HVALS', reservations)) do
    local kind, tokens = parse(state)
    if kind == 'o' then
      reserved = reserved + tokens
    end
  end
  return { redis.call('ZCARD', leases), reserved, math.floor(level(tonumber(ARGV[2]))) }
end

if ARGV[1] ~= 'renew' then
  reap()
end
local reply = operations[ARGV[1]]()
keep()
return reply
