-- with: _events
-- Remove the events of removed jobs. ARGV: now, '1' to refuse events of theirs that arrive later, ids. Returns how
-- many.
local gone = 0
for i = 3, #ARGV do
  gone = gone + cross_out(ARGV[i])
  if ARGV[2] == '1' then call('ZADD', TICKETS, int(now), ARGV[i]) end
end
return gone
