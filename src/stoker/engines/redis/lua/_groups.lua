-- Groups (FORMAT.md). A group that is complete is closed at once, in the step that ends its last member: from then on it
-- is final. Its callbacks are stored by the client, to which `completed` names it (key of the group, callbacks, '1' if
-- all members are done, when it was made, its queue or '', now), or by a sweep.
local completed = {}

-- A group that cannot be read is left alone: it counts nothing more and is never closed (damage.py).
local function damaged_group(key, why)
  local id = string.match(key, '[^:]*$')
  warn_once('group:' .. id, fmt('group %s cannot be read: %s. It is set aside: its members run, and its callbacks do not',
    id, why))
end

-- Fields of a group; nil where its key holds something else.
local function read_group(key, ...)
  local g = redis.pcall('HMGET', key, ...)
  if not g.err then return g end
  damaged_group(key, 'its key holds no hash')
end

local LETTERS = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/'

-- The id of a group, which its key ends with in base64.
local function group_id(key)
  local id, value, bits = {}, 0, 0
  for letter in string.gmatch(string.match(key, '[^:]*$'), '[%w+/]') do
    value, bits = value * 64 + string.find(LETTERS, letter, 1, true) - 1, bits + 6
    if bits >= 8 then
      bits = bits - 8
      id[#id + 1] = string.char(math.floor(value / 2 ^ bits))
      value = value % 2 ^ bits
    end
  end
  return table.concat(id)
end

-- A new group is among the open ones, for lists.
local function list_group(key, agenda, at) call('ZADD', agenda .. ':open', at, group_id(key)) end

-- model.groups.Group.close and Group.callbacks.
local function close_group(key, agenda, succeeded)
  local g = call('HMGET', key, 'q', 'f', 'at', 't')
  local sound, callbacks = pcall(cjson.decode, g[2] or '')
  if not sound or type(callbacks) ~= 'table' or not tonumber(g[3]) then
    return damaged_group(key, 'its callbacks or its creation are damaged')
  end
  local tuned = g[1] and call('HMGET', QUEUES, g[1] .. '/keep_done', g[1] .. '/keep_dead') or {}
  local keep = tonumber(tuned[1] or nil) or tonumber(callbacks.keep) or $KEEP_DONE$
  if not succeeded and tonumber(g[4]) > $MOST_KNOWN$ then
    keep = math.max(keep, tonumber(tuned[2] or nil) or $KEEP_DEAD$)
  end
  local expires = int(now + math.max(keep, $LEAST_KEPT$))
  call('HSET', key, 'closed', int(now), 'expires', expires)
  local id = group_id(key)
  call('ZREM', agenda .. ':open', id)
  call('ZADD', agenda .. ':closed', g[3], id)
  if callbacks.wakes or callbacks.on_finish or (succeeded and callbacks['then']) or (not succeeded and callbacks.on_failure) then
    call('HSET', key, 'p', '1')
    call('ZADD', agenda, '0', key)
  else
    call('ZADD', agenda, expires, key)
  end
  completed[#completed + 1] = {key, g[2], succeeded and '1' or '', g[3], g[1] or '', int(now)}
end

-- model.groups.Group.counted and Group.complete.
local function count_group(key, agenda, total, done, dead, canceled)
  local g = read_group(key, 's', 'closed', 't', 'd', 'x', 'c')
  if not g or not g[1] or g[2] then return end
  local t, d, x, c = tonumber(g[3]), tonumber(g[4]), tonumber(g[5]), tonumber(g[6])
  if not (t and d and x and c) then return damaged_group(key, 'its numbers are damaged') end
  t, d, x, c = t + total, d + done, x + dead, c + canceled
  call('HSET', key, 't', t, 'd', d, 'x', x, 'c', c)
  if g[1] ~= 'u' and d + x + c >= t then close_group(key, agenda, g[1] == 's' and d >= t) end
end

-- Note who joins, before they are counted (model.groups.known_members). All are found by their group, also the copy of
-- a member that is made when the group has closed.
local function join_group(key, agenda, members, queue)
  local g = read_group(key, 's', 'closed', 't', 'm')
  if not g or not g[1] then return end
  local entries = {}
  for i = 1, #members, 16 do
    entries[#entries + 1], entries[#entries + 2] = '0', sub(members, i, i + 15)
  end
  call('ZADD', string.gsub(key, ':group:([^:]*)$', ':members:%1'), unpack(entries))
  if g[2] then return end
  if g[4] or g[3] == '0' then
    local known = (g[4] or '') .. members
    if #known <= 16 * $MOST_KNOWN$ then call('HSET', key, 'm', known) else call('HDEL', key, 'm') end
  end
  call('HSETNX', key, 'q', queue)
  call('HSET', key, 'touched', int(now))
  if g[1] == 'u' then call('ZADD', agenda, int(now + $ABANDONED_AFTER$), key) end
end
