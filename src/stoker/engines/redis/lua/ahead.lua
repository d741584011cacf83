-- with: ?_packed_ids, ?_waiting, ?_subqueues
-- Whether queues are paused, out of tokens or cooling, and when the first job of each is due. ARGV: now, the queues'
-- names, in the order of their keys. Returns {now, for each queue {paused or nil, bucket or nil, cooling until or '',
-- due or ''}}; a fifth value where a queue has subqueues and this form of the script does not know subqueues.
local out = {}

-- When time alone lets a claim take a job of a subqueue: of the first open one, and of the next to be looked at that has
-- a free slot. Where very many full ones come first, a worker looks too early once.
local function first_of_subqueues(q)
  local due
  local function earlier_of(s)
    if s.next and (not due or s.next < due) then due = s.next end
    local head = s.head and parse('>I8', s.head, 3)
    if head and (not due or head < due) then due = head end
  end
  local open = call('ZRANGEBYLEX', q.order, '[h', '(i', 'LIMIT', 0, 1)[1]
  if open then earlier_of(subqueue_state(q, sub(open, 28))) end
  for at = 0, 900, 100 do
    local timers = call('ZRANGEBYLEX', q.order, '[n', '(o', 'LIMIT', at, 100)
    for i, member in ipairs(timers) do
      local s = subqueue_state(q, sub(member, 10))
      if not is_full(s) or at + i == 1000 then
        earlier_of(s)
        return due
      end
    end
    if #timers < 100 then break end
  end
  return due
end

-- When the first job of a queue is due.
local function first_due(waiting, subqueues)
  local first, bound = nil, '-'
  while true do
    local head = call('ZRANGEBYLEX', waiting, bound, '(\8', 'LIMIT', 0, 1)[1]
    if not head then break end
    if is_entry(head) then
      bound = '[' .. pack('>I2', parse('>I2', head) + 1)
      local due = parse('>I8', head, 3)
      if not first or due < first then first = due end
    else
      bound = '(' .. head  -- a claim takes it out
    end
  end
  local due = subqueues and first_of_subqueues(subqueues)
  if due and (not first or due < first) then first = due end
  return first
end

for i = 2, #ARGV do
  local name = ARGV[i]
  local gate = call('HMGET', QUEUES, name .. '/paused', name .. '/bucket', name .. '/until', name .. '/has_subqueues')
  if not readable(name, gate[1], gate[3], gate[2]) then gate[1], gate[2], gate[3] = '0', false, false end
  local subqueues = WITH_SUBQUEUES and gate[4] and subqueues_of(name, 22 + (i - 2) * STRIDE)
  local first = guarded(name, first_due, WAIT(i - 1), subqueues)
  out[i - 1] = {gate[1], gate[2], gate[3] or '', first and int(first) or '', gate[4] and not WITH_SUBQUEUES and '1' or nil}
end
return reply({int(now), out})
