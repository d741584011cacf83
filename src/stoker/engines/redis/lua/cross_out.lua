-- with: _events
-- Remove the events of jobs that are gone. ARGV: now, '1' if events that come late are to be kept out, their ids.
-- Answers how many events those were.
local gone = 0
for i = 3, #ARGV do
  gone = gone + cross_out(ARGV[i])
  if ARGV[2] == '1' then call('ZADD', TICKETS, int(now), ARGV[i]) end
end
return gone
