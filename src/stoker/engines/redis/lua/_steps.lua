-- Steps of jobs (FORMAT.md): `steps` holds the rows, `stepnames` id16 · flag · name of each. The flag is '\1' for a row
-- that is open or early, which signals look for, and '\0' for every other one.
-- `asking` holds id16 · name of the rows that may wait for a signal.
local steps = {rows = sub(STATE, 1, -6) .. 'steps', names = sub(STATE, 1, -6) .. 'stepnames', asking = sub(STATE, 1, -6) .. 'asking'}

-- model.steps.asks.
function steps.asks(name, row)
  return sub(row, 1, 1) == '2' and sub(row, 26, 26) == '=' and sub(row, 27, 34) ~= '{"kind":' and sub(name, 1, 6) ~= 'calls:'
end

-- model.steps.stored: a row that is finished or calls a job counts, whatever is stored.
function steps.overwrites(row)
  local state = sub(row, 1, 1)
  return state == '0' or state == '4'
end

-- Suspended jobs of a queue, by their due time: the key beside that of its waiting set.
function steps.suspended(wait) return (string.gsub(wait, '}:wait:', '}:suspended:', 1)) end

function steps.timed(row)
  return sub(row, 10, 17) == '\0\0\0\0\0\0\0\0' and sub(row, 1, 9) .. now8 .. sub(row, 18) or row
end

-- Rows that are not there yet, of a whole batch: they are written together.
steps.new = {rows = {}, names = {}, asking = {}}
function steps.flush()
  local new = steps.new
  if #new.rows == 0 then return end
  call('HSET', steps.rows, unpack(new.rows))
  call('ZADD', steps.names, unpack(new.names))
  if #new.asking > 0 then call('ZADD', steps.asking, unpack(new.asking)) end
  steps.new = {rows = {}, names = {}, asking = {}}
end

-- Store a row of a name that the job has none of.
function steps.add(field, row)
  local new = steps.new
  local n, id, name, state = #new.rows, sub(field, 1, 16), sub(field, 17), sub(row, 1, 1)
  new.rows[n + 1], new.rows[n + 2] = field, steps.timed(row)
  new.names[n + 1], new.names[n + 2] = '0', id .. ((state == '2' or state == '3') and '\1' or '\0') .. name
  if steps.asks(name, row) then
    local a = #new.asking
    new.asking[a + 1], new.asking[a + 2] = '0', field
  end
  if n >= 2000 then steps.flush() end
end

-- Store a row. `field`: id16 · name. One without a time is stored now.
function steps.put(field, row)
  row = steps.timed(row)
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

-- The rows that the claim of a suspended job brings (model.steps.brought), as (name, row, …); false: they are to be read.
-- A script reads only so many for all of its claims.
steps.room = $BROUGHT_AT_ONCE$
function steps.brought(id)
  steps.flush()
  local found = call('ZRANGEBYLEX', steps.names, '[' .. id .. '\0"', '(' .. id .. '\2', 'LIMIT', 0, $MOST_BROUGHT$ + 1)
  if #found > math.min(steps.room, $MOST_BROUGHT$) then return false end
  local rows, size = {}, 0
  for i, member in ipairs(found) do
    local name = sub(member, 18)
    local row = call('HGET', steps.rows, id .. name)
    size = size + math.max(0, #(row or '') - $STEP_SIZE$ - 1)
    if not row or size > $LARGEST_BROUGHT$ then return false end
    rows[i * 2 - 1], rows[i * 2] = name, row
  end
  steps.room = steps.room - #found
  return rows
end

function steps.members(id)
  steps.flush()
  return call('ZRANGEBYLEX', steps.names, '[' .. id, '(' .. id .. '\2')
end

-- Remove the rows of a job. A store that has no rows at all is asked once for many jobs.
function steps.drop(id)
  steps.flush()
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
