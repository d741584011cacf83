-- with: _lots, _waiting, _subqueues
-- Apply the numbers that an operator set (model.subqueues.repinned) and look at each subqueue at once, so that no claim
-- has to look at all of them. ARGV: now, queue, names of subqueues.
local q, names = divided_queue(ARGV[2], 22), {}
for i = 3, #ARGV do names[#names + 1] = ARGV[i] end
local stored = call('HGET', QUEUES, q.name .. '/limits')
local pins, known = stored and cjson.decode(stored) or {}, states_of(q, names)
for _, name in ipairs(names) do
  local s = known[name]
  local pinned = s.limited and pins[string.match(name, '^[^/]*')] or nil
  if s.raw and pinned ~= s.pinned then
    changing(q, s).pinned = pinned
    touch(s, 0)
    local first, later = look(q, name)
    looked(s, first, later, 2 * claims_of(q) + 1)
  end
end
write_states()
tick()
return int(now)
