-- Replace one field of a hash if it still has the value that the caller read, or only read it. With an entry, also add
-- that to the sorted set before the hash in KEYS.
-- ARGV: now, field[, value read, new value[, score, entry]]; '' for no value. Returns {now, whether it was replaced,
-- value}.
local cell, field, seen, wanted, entry = KEYS[#KEYS], ARGV[2], ARGV[3], ARGV[4], ARGV[6]
local found = call('HGET', cell, field) or ''
if found ~= seen then return {int(now), 0, found} end
-- The first write is a removal: a server without free memory accepts it, and the rest of the script with it.
call('HDEL', cell, field)
if wanted ~= '' then call('HSET', cell, field, wanted) end
if entry then call('ZADD', KEYS[#KEYS - 1], ARGV[5], entry) end
tick()
return {int(now), 1, wanted}
