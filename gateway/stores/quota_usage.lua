-- What tenants used, by UTC day, key and model: one hash a day, one field for each key and model, written by the
-- operation that charges or refuses, so that nothing is counted twice or lost.
-- The lines of quota_counters.lua stand before these.
--
-- KEYS  prefix of a tenant's days; a day's own key is `prefix:number`, under the same hash tag
-- field `key NUL model`, value 14 packed numbers: requests, uncached, cached and output tokens, page-milliseconds,
-- cost in whole units, the rest of the cost in billionths, refusals by limit (in the order of `check`).
-- The cost is in two numbers because Lua's are exact up to 2^53 only.

local USAGE_KEEP_MS = 400 * DAY_MS
local NANO = 1000000000
local COST, COST_REST, REFUSALS = 6, 7, 7
local NO_USAGE = { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

local function usage_key(prefix, day)
  return prefix .. ':' .. string.format('%d', day)
end

-- Add what `change` makes of the counts of today.
local function note(prefix, split, change)
  local key = usage_key(prefix, math.floor(now / DAY_MS))
  local packed = redis.call('HGET', key, split)
  local counts = packed and cmsgpack.unpack(packed) or { unpack(NO_USAGE) }
  change(counts)
  redis.call('HSET', key, split, cmsgpack.pack(counts))
  redis.call('PEXPIRE', key, USAGE_KEEP_MS)
end

local function note_used(prefix, split, used)
  note(prefix, split, function(counts)
    for index, amount in ipairs(used) do
      counts[index] = counts[index] + amount
    end
    if counts[COST_REST] >= NANO then
      counts[COST], counts[COST_REST] = counts[COST] + 1, counts[COST_REST] - NANO
    end
  end)
end

local function note_refused(prefix, split, which)
  note(prefix, split, function(counts)
    counts[REFUSALS + which] = counts[REFUSALS + which] + 1
  end)
end

-- Rows of day, field, counts.
local function usage_on(prefix, days)
  local rows = {}
  for _, day in ipairs(days) do
    local found = redis.call('HGETALL', usage_key(prefix, tonumber(day)))
    for index = 1, #found, 2 do
      rows[#rows + 1] = { tonumber(day), found[index], cmsgpack.unpack(found[index + 1]) }
    end
  end
  return rows
end
