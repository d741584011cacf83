-- Workers whose lease is over, at most ARGV[2] of them, who fell silent first. KEYS[18]: how long the leases are.
-- Answers {now, names, lengths of their leases}.
local names = call('ZRANGEBYSCORE', WORKERS, '-inf', '(' .. int(now), 'LIMIT', 0, ARGV[2])
return {int(now), names, #names > 0 and call('HMGET', KEYS[18], unpack(names)) or {}}
