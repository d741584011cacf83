-- A lot is a text of ids, 16 bytes each, that came to the same place in the same step: one entry instead of one for each.
-- What a worker holds is a sorted set in byte order, so in the order of the claims: a token, then the lot. ENDS has lots as members, when they expire as the score. Lines: see _line.
local function members(lot)
  local ids = {}
  for i = 1, #lot / 16 do ids[i] = sub(lot, i * 16 - 15, i * 16) end
  return ids
end

-- A lot without those of whom `gone` knows; they are marked as found.
local function without(lot, gone)
  local left, n = {}, 0
  for _, id in ipairs(members(lot)) do
    if gone[id] then gone[id] = 'found' else n = n + 1; left[n] = id end
  end
  return table.concat(left)
end

local function hold(held, token8, ids) call('ZADD', held, '0', token8 .. ids) end

-- The lots of one token. Several calls may have had the same one: a clock can stand still.
local function lots_of(held, token8)
  return call('ZRANGEBYLEX', held, '[' .. token8, '(' .. pack('>I8', parse('>I8', token8) + 1))
end

-- Different jobs are not held any more. First the removal: a server without memory lets that through.
local function let_go(held, token8, ids)
  local lots, gone = lots_of(held, token8), nil
  for _, lot in ipairs(lots) do
    local left = ''
    if #lots > 1 or #lot > 8 + 16 * #ids then
      if not gone then
        gone = {}
        for _, id in ipairs(ids) do gone[id] = true end
      end
      left = without(sub(lot, 9), gone)
    end
    if 8 + #left < #lot then
      call('ZREM', held, lot)
      if left ~= '' then call('ZADD', held, '0', token8 .. left) end
    end
  end
end

-- The ids of everything held, or of what is held between two tokens.
local function held_by(held, from, to)
  local ids = {}
  for _, lot in ipairs(call('ZRANGEBYLEX', held, from or '-', to or '+')) do
    for _, id in ipairs(members(sub(lot, 9))) do ids[#ids + 1] = id end
  end
  return ids
end

-- Take jobs out of ENDS: expiry -> those of it that go, who are marked as found.
local function unend(going)
  for expires, gone in pairs(going) do
    for _, lot in ipairs(call('ZRANGEBYSCORE', ENDS, expires, expires)) do
      local left = without(lot, gone)
      if #left < #lot then
        call('ZREM', ENDS, lot)
        if left ~= '' then call('ZADD', ENDS, expires, left) end
      end
    end
  end
end
