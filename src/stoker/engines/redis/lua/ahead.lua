-- Whether queues are paused, out of tokens or cooling, and when the first job of each is due. ARGV: now, the queues'
-- names, in the order of their keys. Returns {now, for each queue {paused or nil, bucket or nil, cooling until or '',
-- due or ''}}.
local out = {}
for i = 2, #ARGV do
  local name, waiting = ARGV[i], WAIT(i - 1)
  local gate = call('HMGET', QUEUES, name .. '/paused', name .. '/bucket', name .. '/until')
  local first, priority = nil, 0
  while true do
    local head = call('ZRANGEBYLEX', waiting, '[' .. pack('>I2', priority), '+', 'LIMIT', 0, 1)[1]
    if not head then break end
    priority = parse('>I2', head) + 1
    local due = parse('>I8', head, 3)
    if not first or due < first then first = due end
  end
  out[i - 1] = {gate[1], gate[2], gate[3] or '', first and int(first) or ''}
end
return {int(now), out}
