-- A queue's waiting set: entries in byte order, each priority2 · due8 and then either id16 · '+' of a job that has a
-- state, or a lot of jobs without one that were inserted together, in ascending order.
-- Only jobs that were due at their insert share an entry, so an entry that is not due yet is one job.
local function has_state(entry) return #entry % 16 == 11 end

local function ids_at(entry) return members(has_state(entry) and sub(entry, 11, 26) or sub(entry, 11)) end

local function earlier(a, b)
  local a1, a2, a3, a4 = parse('>I4I4I4I4', a)
  local b1, b2, b3, b4 = parse('>I4I4I4I4', b)
  if a1 ~= b1 then return a1 < b1 end
  if a2 ~= b2 then return a2 < b2 end
  if a3 ~= b3 then return a3 < b3 end
  return a4 < b4
end

-- The entry whose lot holds a job without a state, and the entry without the job; nil when there is none.
local function lot_of(wait, entry)
  local head, id = sub(entry, 1, 10), sub(entry, 11, 26)
  -- The end of the range lies behind every lot that begins with this id.
  local behind = '(' .. head .. id .. string.rep('\255', 17)
  for _, lot in ipairs(call('ZRANGEBYLEX', wait, '[' .. head, behind)) do
    local left = not has_state(lot) and without(sub(lot, 11), {[id] = true})
    if left and #left < #lot - 10 then return lot, head .. left end
  end
end

local function is_waiting(wait, entry)
  return call('ZSCORE', wait, entry) or not has_state(entry) and lot_of(wait, entry)
end

local function leave_waiting(wait, entry)
  if call('ZREM', wait, entry) == 1 or has_state(entry) then return end
  local lot, left = lot_of(wait, entry)
  if lot then
    call('ZREM', wait, lot)
    call('ZADD', wait, '0', left)
  end
end
