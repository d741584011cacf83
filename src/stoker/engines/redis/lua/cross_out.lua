-- with: _events
-- Remove the events of jobs that are gone. ARGV: now, their ids. Answers how many events those were.
local gone = 0
for i = 2, #ARGV do gone = gone + cross_out(ARGV[i]) end
return gone
