-- Show a worker: what it says about itself behind the time it was seen.
-- ARGV: now, worker, what it says.
-- First the removal: a server without memory lets that through, and then what follows.
call('HDEL', KEYS[#KEYS], ARGV[2])
call('HSET', KEYS[#KEYS], ARGV[2], now8 .. ARGV[3])
tick()
