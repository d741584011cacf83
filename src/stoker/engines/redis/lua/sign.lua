-- Write that an engine is alive, so that its count is not swept. ARGV: now, engine.
local seen, engine = KEYS[#KEYS], ARGV[2]
-- First the removal: a server without memory lets that through, and then what follows.
call('HDEL', seen, engine)
call('HSET', seen, engine, now8)
