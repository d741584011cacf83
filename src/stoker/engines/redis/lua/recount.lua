-- with: _lots, _waiting, _subqueues
-- Repair the number of running jobs of a subqueue (model.subqueues.recounted), if its state is still as it was read.
-- ARGV: now, queue, name of the subqueue, its state, how many jobs hold a slot. Returns 1 if it was repaired.
local q = divided_queue(ARGV[2], 22)
local s = state_of_line(q, ARGV[3])
if s.raw ~= ARGV[4] then return 0 end
changing(q, s).running = tonumber(ARGV[5])
s.since = nil
touch(q, s, 0)
write_states()
wake(1)
tick()
return 1
