-- Packed ids are a string of ids, 16 bytes each: jobs that enter a set in the same step share one entry. A worker's
-- lease set holds token8 · packed ids in byte order, which is the order of the claims. ENDS holds packed ids, scored by
-- when they expire.
-- Waiting sets: see _waiting.lua.
local function members(packed)
  local ids = {}
  for i = 1, #packed / 16 do ids[i] = sub(packed, i * 16 - 15, i * 16) end
  return ids
end

-- Packed ids without those in `gone`; those found are marked there.
local function without(packed, gone)
  local left, n = {}, 0
  for _, id in ipairs(members(packed)) do
    if gone[id] then gone[id] = 'found' else n = n + 1; left[n] = id end
  end
  return table.concat(left)
end

-- An entry of a lease set that was cut: the jobs that were cut off are looked for by the next cleaning (damage.py).
local function note_cut(held, entry)
  if #entry >= 24 and #entry % 16 == 8 then return end
  redis.pcall('HSETNX', DAMAGE, 'entries', 'a lease was cut')
  said[#said + 1] = fmt('the lease %s held %d bytes that are no whole claims. The claims that were cut off are given back '
    .. 'by the next cleaning. Another program writes to keys of Stoker, or the server lost data', printable(held), #entry)
end

local function hold(held, token8, ids) call('ZADD', held, '0', token8 .. ids) end

-- The entries of one token. Several claims may have the same one: a clock can stand still.
local function entries_under(held, token8)
  return call('ZRANGEBYLEX', held, '[' .. token8, '(' .. pack('>I8', parse('>I8', token8) + 1))
end

-- Remove jobs from a lease set. The first write is a removal: a server without free memory accepts it.
local function let_go(held, token8, ids)
  local entries, gone = entries_under(held, token8), nil
  for _, entry in ipairs(entries) do
    local left = ''
    note_cut(held, entry)
    if #entries > 1 or #entry > 8 + 16 * #ids then
      if not gone then
        gone = {}
        for _, id in ipairs(ids) do gone[id] = true end
      end
      left = without(sub(entry, 9), gone)
    end
    if 8 + #left < #entry then
      call('ZREM', held, entry)
      if left ~= '' then call('ZADD', held, '0', token8 .. left) end
    end
  end
end

-- The ids of a lease set, or of its part between two tokens.
local function held_by(held, from, to)
  local ids = {}
  for _, entry in ipairs(call('ZRANGEBYLEX', held, from or '-', to or '+')) do
    for _, id in ipairs(members(sub(entry, 9))) do ids[#ids + 1] = id end
  end
  return ids
end

-- Note for how long jobs that end now are kept: with these few numbers ENDS is also in the order of the ends (find.py).
local function kept_for(expires) call('SADD', KEEPS, int(tonumber(expires) - now)) end

-- Take jobs out of ENDS. `going` maps an expiry to its jobs that go; those found are marked there.
local function unend(going)
  for expires, gone in pairs(going) do
    for _, packed in ipairs(call('ZRANGEBYSCORE', ENDS, expires, expires)) do
      local left = without(packed, gone)
      if #left < #packed then
        call('ZREM', ENDS, packed)
        if left ~= '' then call('ZADD', ENDS, expires, left) end
      end
    end
  end
end
