-- Exchange one field of a hash if it still is what the caller saw, or only look at it.
-- ARGV: now, field[, what was seen, what shall stand there]; empty stands for nothing.
-- Answers the time, whether it was exchanged, and what stands there.
local cell, field, seen, wanted = KEYS[#KEYS], ARGV[2], ARGV[3], ARGV[4]
local found = call('HGET', cell, field) or ''
if found ~= seen then return {int(now), 0, found} end
-- First the removal: a server without memory lets that through, and then what follows. Workers must go on there.
call('HDEL', cell, field)
if wanted ~= '' then call('HSET', cell, field, wanted) end
tick()
return {int(now), 1, wanted}
