-- The lease a worker has elsewhere, for a shard it comes to. ARGV[2..3]: worker, until. Answers {now, 1}, and {now, 0} for
-- a worker that was reaped here.
if call('ZSCORE', RETIRED, ARGV[2]) then return {int(now), 0} end
call('ZADD', WORKERS, 'GT', ARGV[3], ARGV[2])
return {int(now), 1}
