-- with: _events
-- Remove old events and points, presences of silent workers and lapsed named locks.
-- ARGV: now, how long events, points and presences are kept, how many events and points to remove at most.
-- Returns how many events, points, presences and locks were removed.
local limit = tonumber(ARGV[5])

local function before(kept)
  return math.max(now - tonumber(kept), 0)
end

local events = drop_events(limit, pack('>I8', before(ARGV[2])))
local points = call('ZLEXCOUNT', POINTS, '-', '(' .. pack('>I8', before(ARGV[3])))
points = math.min(points, limit)
if points > 0 then
  call('ZREMRANGEBYRANK', POINTS, 0, points - 1)
end

local function clear(hash, is_over)
  local gone, found = 0, call('HGETALL', hash)
  for i = 1, #found, 2 do
    if is_over(parse('>I8', found[i + 1])) then
      gone = gone + call('HDEL', hash, found[i])
    end
  end
  return gone
end

local silent = before(ARGV[4])
local presences = clear(PRESENCES, function(seen) return seen < silent end)
local locks = clear(LOCKS, function(ends) return ends <= now end)
if events + points + presences + locks > 0 then tick() end
return {events, points, presences, locks}
