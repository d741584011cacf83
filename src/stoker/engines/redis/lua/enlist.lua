-- Copy a worker's lease from the home shard into this one. ARGV: now, worker, until. Returns {now, 1}, or {now, 0} for
-- a worker that was reaped here.
if call('ZSCORE', RETIRED, ARGV[2]) then return {int(now), 0} end
call('ZADD', WORKERS, 'GT', ARGV[3], ARGV[2])
return {int(now), 1}
