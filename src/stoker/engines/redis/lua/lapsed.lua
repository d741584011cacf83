-- Workers whose lease is over, at most ARGV[2] of them, who fell silent first. Answers {now, names}.
return {int(now), call('ZRANGEBYSCORE', WORKERS, '-inf', '(' .. int(now), 'LIMIT', 0, ARGV[2])}
