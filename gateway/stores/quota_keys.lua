-- Idempotency keys: of the requests that begin under one key, one is charged.

-- Returns whether a request is the one of its key, which stays its own until REMEMBER_MS from now.
local function owns(key, id)
  local owner = redis.call('GET', key)
  if owner and owner ~= id then
    return false
  end
  redis.call('SET', key, id, 'PX', REMEMBER_MS)
  return true
end

-- What cost nothing may be asked for again under the same key.
local function disown(key, id)
  if redis.call('GET', key) == id then
    redis.call('DEL', key)
  end
end
