-- Which batches of settlements came already, for as long as an outage may last: ids are forgotten long before.

-- One gateway's batches come in order, so the number of the last one tells of all.
local function came_before(mark, number)
  if number <= tonumber(redis.call('GET', mark) or '0') then
    return true
  end
  redis.call('SET', mark, number, 'PX', MARK_MS)
  return false
end
