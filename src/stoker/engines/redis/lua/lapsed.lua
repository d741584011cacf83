-- Workers whose lease is over, the first to lapse first. KEYS[19]: lengths of leases. ARGV: now, how many at most.
-- Returns {now, names, lengths of their leases}.
local names = call('ZRANGEBYSCORE', WORKERS, '-inf', '(' .. int(now), 'LIMIT', 0, ARGV[2])
return {int(now), names, #names > 0 and call('HMGET', KEYS[19], unpack(names)) or {}}
