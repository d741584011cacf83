-- Replace one field of a hash if it still has the value that the caller read, or only read it.
-- ARGV: now, field[, value read, new value]; '' for no value. Returns {now, whether it was replaced, value}.
local cell, field, seen, wanted = KEYS[#KEYS], ARGV[2], ARGV[3], ARGV[4]
local found = call('HGET', cell, field) or ''
if found ~= seen then return {int(now), 0, found} end
-- The first write is a removal: a server without free memory accepts it, and the rest of the script with it.
call('HDEL', cell, field)
if wanted ~= '' then call('HSET', cell, field, wanted) end
tick()
return {int(now), 1, wanted}
