-- with: _events
-- Hide the events of removed jobs. ARGV: now, '1' to hide also those that arrive later, ids.
for i = 3, #ARGV do
  if ARGV[2] == '1' then call('ZADD', DELETED, int(now), ARGV[i]) else cross_out(ARGV[i]) end
end
return #ARGV - 2
