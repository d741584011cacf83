-- Note that an engine is alive, so that its write counter is kept. ARGV: now, engine.
local seen, engine = KEYS[#KEYS], ARGV[2]
-- The first write is a removal: a server without free memory accepts it, and the rest of the script with it.
call('HDEL', seen, engine)
call('HSET', seen, engine, now8)
