-- A queue's line: a sorted set of places in byte order, each priority and due time, then either the id of a job that has a
-- state and a '+', or a lot: the ids of new jobs that came together, in ascending order.
-- Only jobs that were due when they came share a place, so every place in the future is one job.
local function is_stated(place) return #place % 16 == 11 end

local function ids_at(place) return members(is_stated(place) and sub(place, 11, 26) or sub(place, 11)) end

local function earlier(a, b)
  local a1, a2, a3, a4 = parse('>I4I4I4I4', a)
  local b1, b2, b3, b4 = parse('>I4I4I4I4', b)
  if a1 ~= b1 then return a1 < b1 end
  if a2 ~= b2 then return a2 < b2 end
  if a3 ~= b3 then return a3 < b3 end
  return a4 < b4
end

-- The lot a new job stands in, and the lot without it; nil when it stands in none.
local function lot_of(wait, place)
  local head, id = sub(place, 1, 10), sub(place, 11, 26)
  -- Behind whatever begins with this id: another one has 16 bytes.
  local behind = '(' .. head .. id .. string.rep('\255', 17)
  for _, lot in ipairs(call('ZRANGEBYLEX', wait, '[' .. head, behind)) do
    local left = not is_stated(lot) and without(sub(lot, 11), {[id] = true})
    if left and #left < #lot - 10 then return lot, head .. left end
  end
end

local function stands_in_line(wait, place)
  return call('ZSCORE', wait, place) or not is_stated(place) and lot_of(wait, place)
end

local function leave_line(wait, place)
  if call('ZREM', wait, place) == 1 or is_stated(place) then return end
  local lot, left = lot_of(wait, place)
  if lot then
    call('ZREM', wait, lot)
    call('ZADD', wait, '0', left)
  end
end
