-- A queue's waiting set: entries in byte order, each priority2 · due8 and then either id16 · '+' of a job that has a
-- state, or the packed ids of jobs without one that were inserted together, in ascending order.
-- Only jobs that were due at their insert share an entry, so an entry that is not due yet is one job.
local function has_state(entry) return #entry == 27 end

local function ids_at(entry) return members(has_state(entry) and sub(entry, 11, 26) or sub(entry, 11)) end

local function earlier(a, b)
  local a1, a2, a3, a4 = parse('>I4I4I4I4', a)
  local b1, b2, b3, b4 = parse('>I4I4I4I4', b)
  if a1 ~= b1 then return a1 < b1 end
  if a2 ~= b2 then return a2 < b2 end
  if a3 ~= b3 then return a3 < b3 end
  return a4 < b4
end

-- The entry that holds a job without a state, and the entry without the job; nil when there is none.
local function shared_entry(wait, entry)
  local head, id = sub(entry, 1, 10), sub(entry, 11, 26)
  -- The end of the range lies behind every entry that begins with this id.
  local behind = '(' .. head .. id .. string.rep('\255', 17)
  for _, shared in ipairs(call('ZRANGEBYLEX', wait, '[' .. head, behind)) do
    local gone = {[id] = true}
    local left = not has_state(shared) and without(sub(shared, 11), gone)
    if left and gone[id] == 'found' then return shared, head .. left end
  end
end

-- Take bytes that are no entry out of a waiting set or, with the name of a subqueue, out of its entries and `dues`. Of one
-- that was cut the whole ids stay; the jobs that were cut off are looked for by the next cleaning (damage.py).
local function take_out(queue, key, bytes, subqueue, dues)
  local prefix, head, left = subqueue and subqueue .. '\0' or '', sub(bytes, 1, 10), {}
  call('ZREM', key, prefix .. bytes)
  if dues then call('ZREM', dues, prefix .. bytes) end
  if #bytes > 10 and byte(bytes) < 8 then
    for _, id in ipairs(members(sub(bytes, 11))) do
      if body_of(id) and call('HEXISTS', STATE, id) == 0 then left[#left + 1] = id end
    end
    if #left > 0 then
      local member = prefix .. head .. table.concat(left)
      call('ZADD', key, '0', member)
      if dues then call('ZADD', dues, int(parse('>I8', head, 3)), member) end
    end
    redis.pcall('HSETNX', DAMAGE, 'entries', 'an entry of queue ' .. queue .. ' was cut')
  end
  said[#said + 1] = fmt('queue %s: %d bytes that are no entry (%s) were taken out of its waiting jobs; the queue goes on, '
    .. 'and %d jobs that the bytes name stay. Another program writes to keys of Stoker, or the server lost data', queue,
    #bytes, printable(bytes), #left)
end

local function is_waiting(wait, entry)
  return call('ZSCORE', wait, entry) or not has_state(entry) and shared_entry(wait, entry)
end

local function leave_waiting(wait, entry)
  if call('ZREM', wait, entry) == 1 or has_state(entry) then return end
  local shared, left = shared_entry(wait, entry)
  if shared then
    call('ZREM', wait, shared)
    call('ZADD', wait, '0', left)
  end
end
