-- with: _events
-- The heads of some blocks that were stored after one of them, in the order of storing.
-- ARGV: now, the serial of that one, how many.
local found = call('ZRANGEBYSCORE', BODIES, '(' .. ARGV[2], '+inf', 'LIMIT', 0, ARGV[3])
for i = 1, #found do found[i] = sub(found[i], 1, 60) end
return found
