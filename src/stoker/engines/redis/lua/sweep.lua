-- with: _events
-- Remove old events, old points, presences of silent workers, or lapsed named locks.
-- ARGV: now, which ('events', 'points', 'kind_points', 'presences', 'locks'), for how long they are kept, how many events
-- or points to remove at least, if there are so many, and at most. Returns how many were removed.
local sweep, limit = ARGV[2], tonumber(ARGV[4])
local before = math.max(now - tonumber(ARGV[3]), 0)
local removed = 0

local function clear(hash, is_over)
  local found = call('HGETALL', hash)
  for i = 1, #found, 2 do
    if is_over(parse('>I8', found[i + 1])) then
      removed = removed + call('HDEL', hash, found[i])
    end
  end
end

if sweep == 'events' then
  removed = drop_before(limit, before)
elseif sweep == 'points' then
  removed = math.min(call('ZLEXCOUNT', POINTS, '-', '(' .. pack('>I8', before)), limit)
  if removed > 0 then call('ZREMRANGEBYRANK', POINTS, 0, removed - 1) end
elseif sweep == 'kind_points' then
  -- model.query.kind_points_between. Minute by minute, so that a script holds few points.
  local first = math.max(before - $KINDS_BEHIND$, 0)
  for minute = math.ceil(first / 60000000), math.ceil(before / 60000000) - 1 do
    local head, gone = pack('>I8', minute * 60000000), {}
    for _, point in ipairs(call('ZRANGEBYLEX', POINTS, '[' .. head, '(' .. pack('>I8', minute * 60000000 + 1))) do
      if string.find(point, '\0kind_', 9, true) then gone[#gone + 1] = point end
    end
    for i = 1, #gone, 1000 do
      removed = removed + call('ZREM', POINTS, unpack(gone, i, math.min(i + 999, #gone)))
    end
    if removed >= limit then break end
  end
elseif sweep == 'presences' then
  clear(PRESENCES, function(seen) return seen < before end)
  -- Keep the names of the last thousand reaped workers: an unknown worker is treated like a reaped one.
  call('ZREMRANGEBYRANK', RETIRED, 0, -1001)
  -- Remove the write counters of engines that showed no life for a day.
  local writers = call('HGETALL', WRITERS)
  for i = 1, #writers, 2 do
    if parse('>I8', writers[i + 1]) < now - 86400000000 then
      call('HDEL', WRITERS, writers[i])
      call('HDEL', WRITES, writers[i])
    end
  end
else
  clear(LOCKS, function(ends) return ends <= now end)
end
if removed > 0 then tick() end
return removed
