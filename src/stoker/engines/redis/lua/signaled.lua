-- with: _steps
-- What signals look at: the rows of a name, also its numbered ones, and all that are open or early; and the queues of the
-- jobs. ARGV: now, how many fields of a queue are wanted, these, then each (id, name). Returns {now, for each (name,
-- row, …), for each queue {name, values of the fields}}; rows that are not open come without their values.
local out, queues, seen, fields = {}, {}, {}, tonumber(ARGV[2])
for i = 3 + fields, #ARGV, 2 do
  local id, name, rows = ARGV[i], ARGV[i + 1], {}
  local body = body_of(id)
  local _, queue = names_of(body or '')
  if queue and not seen[queue] then
    local wanted = {}
    for k = 1, fields do wanted[k] = queue .. '/' .. ARGV[2 + k] end
    seen[queue], queues[#queues + 1] = true, {queue, call('HMGET', QUEUES, unpack(wanted))}
  end
  local found = call('ZRANGEBYLEX', steps.names, '[' .. id .. '\1', '(' .. id .. '\2')
  local used = id .. '\0' .. name
  found[#found + 1] = used
  for _, member in ipairs(call('ZRANGEBYLEX', steps.names, '[' .. used .. '#', '(' .. used .. '$')) do
    found[#found + 1] = member
  end
  for _, member in ipairs(found) do
    local row = call('HGET', steps.rows, id .. sub(member, 18))
    if row and sub(row, 1, 1) ~= '2' then row = sub(row, 1, $STEP_SIZE$) end
    if row then rows[#rows + 1], rows[#rows + 2] = sub(member, 18), row end
  end
  out[#out + 1] = rows
end
return {int(now), out, queues}
