-- Workers whose lease is over. Answers {now, names}.
return {int(now), call('ZRANGEBYSCORE', WORKERS, '-inf', '(' .. int(now))}
