-- Counters of one scope and the calendar: arithmetic on tables, no command but the time's.
--
-- counter: held      choices with a lease
--          reserved  tokens of open reservations, at worst case
--          periods   day, month -> { number, charged, spent }; charged = spent by what ended + worst case of
--                    what is open, spent = used by what ended + used so far by what is open
--          buckets   kind -> { level, at (ms), capacity, per_minute }; a level below 0 is a debt

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

local DAY_MS = 86400000
local KINDS = { 'requests', 'tokens', 'prompt', 'output' }
local PERIODS = { 'day', 'month' }

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

-- A zone's minutes east of Greenwich -> the day and month that it has now.
local function periods_now(zone)
  local day = math.floor((now + zone * 60000) / DAY_MS)
  return { day = day, month = month_of(day) }
end

local function ms_to_end_of(period, number, zone)
  local next_day = period == 'day' and number + 1 or first_day_of(number + 1)
  return next_day * DAY_MS - zone * 60000 - now
end

local function new_counter()
  return { held = 0, reserved = 0, periods = {}, buckets = {} }
end

-- The period's entry; what an earlier one held is over.
local function period_of(counter, period, number)
  local entry = counter.periods[period]
  if not entry or entry.number < number then
    entry = { number = number, charged = 0, spent = 0 }
    counter.periods[period] = entry
  end
  return entry
end

local function level_of(bucket)
  return math.min(bucket.capacity, bucket.level + math.max(0, now - bucket.at) * bucket.per_minute / 60000)
end

-- The bucket as its limits are now; a new one is full.
local function bucket_of(counter, kind, capacity, per_minute)
  local bucket = counter.buckets[kind]
  if not bucket then
    bucket = { level = capacity }
    counter.buckets[kind] = bucket
  else
    bucket.level = math.min(capacity, level_of(bucket))
  end
  bucket.at, bucket.capacity, bucket.per_minute = now, capacity, per_minute
  return bucket
end

local function give_to_bucket(counter, kind, amount)
  local bucket = counter.buckets[kind]
  if bucket and amount ~= 0 then
    bucket.level, bucket.at = math.min(bucket.capacity, level_of(bucket) + amount), now
  end
end

-- What one request takes of each kind of bucket. One that used nothing never began and is no request.
local function amounts_of(prompt, output)
  return { requests = prompt + output > 0 and 1 or 0, tokens = prompt + output, prompt = prompt, output = output }
end

-- Take `amounts`, less those of `before`, from a scope, in the periods that the request began in. The
-- difference is taken in one step, or a full bucket would lose what it cannot be given back first.
local function charge(counter, began, amounts, before)
  for _, kind in ipairs(KINDS) do
    give_to_bucket(counter, kind, before[kind] - amounts[kind])
  end
  for _, period in ipairs(PERIODS) do
    local entry = period_of(counter, period, began[period])
    if entry.number == began[period] then
      entry.charged = math.max(0, entry.charged + amounts.tokens - before.tokens)
    end
  end
end

local function spend(counter, began, tokens)
  for _, period in ipairs(PERIODS) do
    local entry = period_of(counter, period, began[period])
    if entry.number == began[period] then
      entry.spent = math.max(0, entry.spent + tokens)
    end
  end
end

-- Count a request's worst case as open (sign 1) or as not open any more (sign -1).
local function hold(counter, sign, n, tokens)
  counter.held = math.max(0, counter.held + sign * n)
  counter.reserved = math.max(0, counter.reserved + sign * tokens)
end
