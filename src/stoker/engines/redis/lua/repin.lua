-- with: _packed_ids, _waiting, _subqueues
-- Apply the numbers that an operator set (model.subqueues.repinned). ARGV: now, queue, '1' to look at each subqueue now,
-- so that no claim has to look at all of them, names of subqueues.
local q, names = subqueues_of(ARGV[2], 22), {}
for i = 4, #ARGV do names[#names + 1] = ARGV[i] end
local pins, known = pins_of(q), states_of(q, names)
for _, name in ipairs(names) do
  local s = known[name]
  local pinned = s.limited and pins[string.match(name, '^[^/]*')] or nil
  if s.raw and pinned ~= s.pinned then
    changing(q, s).pinned = pinned
    touch(q, s, 0)
    if ARGV[3] ~= '' then
      local first, later = look(q, name)
      looked(s, first, later, 2 * claims_of(q) + 1)
    end
  end
end
write_states()
tick()
return reply(int(now))
