-- with: _packed_ids, _waiting, _subqueues
-- Repair the number of running jobs of a subqueue (model.subqueues.recounted), if its state is still as it was read.
-- ARGV: now, queue, name of the subqueue, its state, how many jobs hold a slot. Returns 1 if it was repaired. Where the
-- state is lost ('') a sixth value is the limit, and the state is made anew.
local q = subqueues_of(ARGV[2], 22)
local s = subqueue_state(q, ARGV[3])
if (s.raw or '') ~= ARGV[4] or (ARGV[4] == '' and not s.lost) then return reply(0) end
if s.lost then
  restored(q, s, ARGV[6], tonumber(ARGV[5]))
else
  changing(q, s).running = tonumber(ARGV[5])
  s.since = nil
  touch(q, s, 0)
end
write_states()
wake(1)
tick()
return reply(1)
