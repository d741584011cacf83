-- A lot is a string of ids, 16 bytes each: jobs that enter a set in the same step share one entry. A worker's lease set
-- holds token8 · lot in byte order, which is the order of the claims. ENDS holds lots, scored by when they expire.
-- Waiting sets: see _waiting.lua.
local function members(lot)
  local ids = {}
  for i = 1, #lot / 16 do ids[i] = sub(lot, i * 16 - 15, i * 16) end
  return ids
end

-- A lot without the ids in `gone`; those found are marked there.
local function without(lot, gone)
  local left, n = {}, 0
  for _, id in ipairs(members(lot)) do
    if gone[id] then gone[id] = 'found' else n = n + 1; left[n] = id end
  end
  return table.concat(left)
end

-- A lot of a lease set that was cut: the jobs that were cut off are looked for by the next cleaning (damage.py).
local function note_cut(held, lot)
  if #lot >= 24 and #lot % 16 == 8 then return end
  redis.pcall('HSETNX', DAMAGE, 'entries', 'a lease was cut')
  said[#said + 1] = fmt('the lease %s held %d bytes that are no whole claims. The claims that were cut off are given back '
    .. 'by the next cleaning. Another program writes to keys of Stoker, or the server lost data', printable(held), #lot)
end

local function hold(held, token8, ids) call('ZADD', held, '0', token8 .. ids) end

-- The entries of one token. Several claims may have the same one: a clock can stand still.
local function lots_of(held, token8)
  return call('ZRANGEBYLEX', held, '[' .. token8, '(' .. pack('>I8', parse('>I8', token8) + 1))
end

-- Remove jobs from a lease set. The first write is a removal: a server without free memory accepts it.
local function let_go(held, token8, ids)
  local lots, gone = lots_of(held, token8), nil
  for _, lot in ipairs(lots) do
    local left = ''
    note_cut(held, lot)
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

-- The ids of a lease set, or of its part between two tokens.
local function held_by(held, from, to)
  local ids = {}
  for _, lot in ipairs(call('ZRANGEBYLEX', held, from or '-', to or '+')) do
    for _, id in ipairs(members(sub(lot, 9))) do ids[#ids + 1] = id end
  end
  return ids
end

-- Note for how long jobs that end now are kept: with these few numbers ENDS is also in the order of the ends (find.py).
local function kept_for(expires) call('SADD', KEEPS, int(tonumber(expires) - now)) end

-- Take jobs out of ENDS. `going` maps an expiry to its jobs that go; those found are marked there.
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
