-- Steps of jobs (FORMAT.md): `steps` holds the rows, `stepnames` id16 · flag · name of each. The flag is '\1' for a row
-- that is open or early, which signals look for, and '\0' for every other one.
-- `asking` holds id16 · name of the rows that may wait for a signal.
local steps = {rows = sub(STATE, 1, -6) .. 'steps', names = sub(STATE, 1, -6) .. 'stepnames', asking = sub(STATE, 1, -6) .. 'asking'}

-- model.steps.asks.
function steps.asks(name, row)
  return sub(row, 1, 1) == '2' and sub(row, 26, 26) == '=' and sub(row, 27, 34) ~= '{"kind":' and sub(name, 1, 6) ~= 'calls:'
end

-- Suspended jobs of a queue, by their due time: the key beside that of its waiting set.
function steps.suspended(wait) return (string.gsub(wait, '}:wait:', '}:suspended:', 1)) end

-- Store a row. `field`: id16 · name. One without a time is stored now.
function steps.put(field, row)
  if sub(row, 10, 17) == '\0\0\0\0\0\0\0\0' then row = sub(row, 1, 9) .. now8 .. sub(row, 18) end
  local id, name, state = sub(field, 1, 16), sub(field, 17), sub(row, 1, 1)
  local open = state == '2' or state == '3'
  local new = call('HSET', steps.rows, field, row) == 1
  call('ZADD', steps.names, '0', id .. (open and '\1' or '\0') .. name)
  if not new then call('ZREM', steps.names, id .. (open and '\0' or '\1') .. name) end
  if steps.asks(name, row) then
    call('ZADD', steps.asking, '0', field)
  elseif not new then
    call('ZREM', steps.asking, field)
  end
end

function steps.members(id) return call('ZRANGEBYLEX', steps.names, '[' .. id, '(' .. id .. '\2') end

-- Remove the rows of a job. A store that has no rows at all is asked once for many jobs.
function steps.drop(id)
  if steps.some == nil then steps.some = call('EXISTS', steps.names) == 1 end
  local found = steps.some and steps.members(id) or {}
  for first = 1, #found, 1000 do
    local fields = {}
    for i = first, math.min(first + 999, #found) do fields[#fields + 1] = id .. sub(found[i], 18) end
    call('HDEL', steps.rows, unpack(fields))
  end
  if #found > 0 then
    call('ZREMRANGEBYLEX', steps.names, '[' .. id, '(' .. id .. '\2')
    call('ZREMRANGEBYLEX', steps.asking, '[' .. id, '(' .. id .. '\255')
  end
end

-- Give a job the rows of another one (model.steps.kept_by_copy).
function steps.copy(from, to, after)
  local last = after ~= '' and (call('HGET', steps.rows, from .. after) or '')
  for _, member in ipairs(steps.members(from)) do
    local row = sub(member, 18, 18) ~= '!' and call('HGET', steps.rows, from .. sub(member, 18))
    if row and (not last or (sub(row, 1, 1) < '2' and sub(row, 10, 17) <= sub(last, 10, 17))) then steps.put(to .. sub(member, 18), row) end
  end
end
