-- A lot is a text of ids, 16 bytes each, that came to the same place in the same step: one entry instead of one for each.
-- What a worker holds is a hash, token -> lot. ENDS has lots as members, when they expire as the score. Lines: see _line.
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

local function hold(held, token8, ids) call('HSET', held, token8, (call('HGET', held, token8) or '') .. ids) end

-- Different jobs are not held any more. First the removal: a server without memory lets that through.
local function let_go(held, token8, ids)
  local lot = call('HGET', held, token8)
  if not lot then return end
  call('HDEL', held, token8)
  if #lot > 16 * #ids then
    local gone = {}
    for _, id in ipairs(ids) do gone[id] = true end
    local left = without(lot, gone)
    if left ~= '' then call('HSET', held, token8, left) end
  end
end

-- Ids, and the token each is held by.
local function held_by(held)
  local ids, tokens, found = {}, {}, call('HGETALL', held)
  for i = 1, #found, 2 do
    for _, id in ipairs(members(found[i + 1])) do
      ids[#ids + 1] = id
      tokens[#ids] = found[i]
    end
  end
  return ids, tokens
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
