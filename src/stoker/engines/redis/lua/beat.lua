-- Store a worker's presence behind the time. ARGV: now, worker, presence.
-- The first write is a removal: a server without free memory accepts it, and the rest of the script with it.
call('HDEL', KEYS[#KEYS], ARGV[2])
call('HSET', KEYS[#KEYS], ARGV[2], now8 .. ARGV[3])
tick()
