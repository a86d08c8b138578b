-- Counters of one scope and the calendar: arithmetic on tables, no command but the time's.
--
-- A counter is one flat array, because packing named fields costs ten times as much:
--   HELD      choices with a lease
--   RESERVED  tokens of open reservations, at worst case
--   DAY, MONTH each { number, charged, spent }; charged = spent by what ended + worst case of what is open,
--             spent = used by what ended + used so far by what is open
--   BUCKETS   four of { level, at (ms; 0: no such bucket yet), capacity, per_minute }; below 0 is a debt
-- What is not limited has the limit infinity.

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

local DAY_MS = 86400000
local HELD, RESERVED, DAY, MONTH = 1, 2, 3, 6
local PERIODS = { DAY, MONTH }
local BUCKETS = { 9, 13, 17, 21 } -- requests, tokens, prompt tokens, output tokens

-- Days since 1970 -> months since year 0. Source: H. Hinnant, "chrono-compatible low-level date algorithms".
local function month_of(days)
  local z = days + 719468
  local era = math.floor(z / 146097)
  local doe = z - era * 146097
  local yoe = math.floor((doe - math.floor(doe / 1460) + math.floor(doe / 36524) - math.floor(doe / 146096)) / 365)
  local mp = math.floor((5 * (doe - 365 * yoe - math.floor(yoe / 4) + math.floor(yoe / 100)) + 2) / 153)
  local month = mp < 10 and mp + 3 or mp - 9
  return (yoe + era * 400 + (month <= 2 and 1 or 0)) * 12 + month - 1
end

local function first_day_of(month_number)
  local year, month = math.floor(month_number / 12), month_number % 12 + 1
  local y = month <= 2 and year - 1 or year
  local era = math.floor(y / 400)
  local yoe = y - era * 400
  local doy = math.floor((153 * (month > 2 and month - 3 or month + 9) + 2) / 5)
  return era * 146097 + yoe * 365 + math.floor(yoe / 4) - math.floor(yoe / 100) + doy - 719468
end

local function ms_to_end_of(period, number, zone)
  local next_day = period == DAY and number + 1 or first_day_of(number + 1)
  return next_day * DAY_MS - zone * 60000 - now
end

local function new_counter()
  return { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }
end

-- Two zones are at most 26 hours apart, so one that moved west is at most two days behind what it was.
local MAX_AHEAD = 2

local function begin(counter, period, number)
  counter[period], counter[period + 1], counter[period + 2] = number, 0, 0
end

-- Begin the day and the month of now in a zone, in minutes east of Greenwich, where the counter is of earlier ones,
-- or of such as no zone can have been in: the clock had jumped ahead. A zone that moved west does not begin a day
-- twice. Return which ones the counter is of.
local function enter(counter, zone)
  local day = math.floor((now + zone * 60000) / DAY_MS)
  local month = month_of(day)
  if counter[DAY] < day or counter[DAY] > day + MAX_AHEAD then
    begin(counter, DAY, day)
  end
  if counter[MONTH] < month or (counter[MONTH] > month and counter[MONTH] > month_of(day + MAX_AHEAD)) then
    begin(counter, MONTH, month)
  end
  return counter[DAY], counter[MONTH]
end

local function refill(counter, bucket)
  local level, at, capacity, per_minute = unpack(counter, bucket, bucket + 3)
  counter[bucket] = math.min(capacity, level + math.max(0, now - at) * per_minute / 60000)
  counter[bucket + 1] = now
  return counter[bucket]
end

-- The bucket's level under the limits as they are now; a new one is full.
local function level_of(counter, bucket, capacity, per_minute)
  if capacity == math.huge then
    return capacity
  end
  if counter[bucket + 1] == 0 then
    counter[bucket], counter[bucket + 1] = capacity, now
  else
    counter[bucket] = math.min(capacity, refill(counter, bucket))
  end
  counter[bucket + 2], counter[bucket + 3] = capacity, per_minute
  return counter[bucket]
end

-- What one request takes of each bucket. One that used nothing never began and is no request.
local function amounts_of(prompt, output)
  return { prompt + output > 0 and 1 or 0, prompt + output, prompt, output }
end

-- Take `amounts`, less those of `before`, from a scope, in the day and month that the request began in as far as the
-- counter is still of them. The difference is taken in one step, or a full bucket would lose what it cannot be given
-- back first.
local function charge(counter, day, month, amounts, before)
  for index, bucket in ipairs(BUCKETS) do
    local change = before[index] - amounts[index]
    if change ~= 0 and counter[bucket + 1] ~= 0 then
      counter[bucket] = math.min(counter[bucket + 2], refill(counter, bucket) + change)
    end
  end
  local tokens = amounts[2] - before[2]
  if counter[DAY] == day then
    counter[DAY + 1] = math.max(0, counter[DAY + 1] + tokens)
  end
  if counter[MONTH] == month then
    counter[MONTH + 1] = math.max(0, counter[MONTH + 1] + tokens)
  end
end

local function spend(counter, day, month, tokens)
  if counter[DAY] == day then
    counter[DAY + 2] = math.max(0, counter[DAY + 2] + tokens)
  end
  if counter[MONTH] == month then
    counter[MONTH + 2] = math.max(0, counter[MONTH + 2] + tokens)
  end
end

-- Count a request's worst case as open (sign 1) or as not open any more (sign -1).
local function hold(counter, sign, n, tokens)
  counter[HELD] = math.max(0, counter[HELD] + sign * n)
  counter[RESERVED] = math.max(0, counter[RESERVED] + sign * tokens)
end

local NEVER = -1
local RETRY_MS = 1000 -- When a slot or a reservation comes back is not known.

-- Calls refuse(limit's number, limit, used, wait ms) for each limit of a scope that does not cover the
-- request: 1 choices, 2..5 the buckets, 6 day, 7 month.
local function check(counter, limits, n, amounts, refuse)
  local most = limits.concurrency
  if counter[HELD] + n > most then
    refuse(1, most, counter[HELD], n > most and NEVER or RETRY_MS)
  end
  for index, bucket in ipairs(BUCKETS) do
    local capacity, per_minute, need = limits.capacity[index], limits.per_minute[index], amounts[index]
    local level = level_of(counter, bucket, capacity, per_minute)
    if need > level then
      local can_come = need <= capacity and per_minute > 0
      local wait_ms = can_come and math.ceil((need - level) * 60000 / per_minute) or NEVER
      refuse(1 + index, capacity, math.ceil(capacity - level), wait_ms)
    end
  end
  for index, period in ipairs(PERIODS) do
    local budget, tokens = limits.budgets[index], amounts[2]
    if counter[period + 1] + tokens > budget then
      local is_spent = counter[period + 2] + tokens > budget
      local wait_ms = is_spent and ms_to_end_of(period, counter[period], limits.zone) or RETRY_MS
      refuse(5 + index, budget, counter[period + 1], tokens > budget and NEVER or wait_ms)
    end
  end
end

local LIMITS_FORMAT = '<' .. string.rep('d', 12)

-- 12 numbers: zone, concurrency, capacity and tokens a minute of each bucket, hard budget of day and month.
local function limits_of(packed)
  local zone, concurrency, c1, r1, c2, r2, c3, r3, c4, r4, day, month = struct.unpack(LIMITS_FORMAT, packed)
  return {
    zone = zone,
    concurrency = concurrency,
    capacity = { c1, c2, c3, c4 },
    per_minute = { r1, r2, r3, r4 },
    budgets = { day, month },
  }
end
