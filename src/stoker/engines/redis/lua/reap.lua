-- with: _packed_ids, _waiting, _groups, _subqueues, _aside
-- Pass the claims of dead and lapsed workers to a living one. KEYS[19…]: the lease set of the worker that takes over
-- and of each owner, then the lengths of leases. ARGV: now, the worker that takes over, how many claims, how many of
-- the owners are known to be dead; then the owners, those first. The other owners must have lapsed.
-- Returns {now, claims}; a claim is {body, state, last error, notes, curve, cool-down count}. The work is bounded by
-- the limit and the number of owners, not by what they hold: entries are taken in the order of their tokens.
local by, limit = ARGV[2], tonumber(ARGV[3])
-- Without a worker that takes over, the owners are only made unknown.
if by ~= '' and tonumber(call('ZSCORE', WORKERS, by) or '-1') < now then return {int(now), {}} end
local dead, owners, order = tonumber(ARGV[4]), {}, {}

-- Insert an owner into `order`, by its oldest token that was not taken yet.
local PAGE = 20
local function insert_in_order(owner)
  if owner.at == #owner.entries and owner.at % PAGE == 0 then
    for _, entry in ipairs(call('ZRANGE', owner.key, owner.at, owner.at + PAGE - 1)) do
      owner.entries[#owner.entries + 1] = entry
    end
  end
  local entry = owner.entries[owner.at + 1]
  if not entry then return end
  note_cut(owner.key, entry)
  owner.token = #entry >= 8 and parse('>I8', entry) or 0
  local i = #order + 1
  while i > 1 and order[i - 1].token > owner.token do i = i - 1 end
  table.insert(order, i, owner)
end

for i = 5, #ARGV do
  local name = ARGV[i]
  local gone = i < 5 + dead or tonumber(call('ZSCORE', WORKERS, name) or '+inf') < now
  if gone and name ~= by and not owners[name] then
    owners[name] = {name = name, key = KEYS[15 + i], entries = {}, at = 0}
    if limit > 0 then insert_in_order(owners[name]) end
  end
end

local ids, owner_of, n = {}, {}, 0
while order[1] and n < limit do
  local owner = table.remove(order, 1)
  owner.at = owner.at + 1
  local entry, cut = owner.entries[owner.at], 8 + 16 * (limit - n)
  if #entry > cut then owner.rest = sub(entry, 1, 8) .. sub(entry, cut + 1) end
  for _, id in ipairs(members(sub(entry, 9, cut))) do
    n = n + 1
    ids[n], owner_of[n] = id, owner.name
  end
  insert_in_order(owner)
end
-- The first write is a removal: a server without free memory accepts it, and the rest of the script with it.
for _, owner in pairs(owners) do
  if owner.at > 0 then call('ZREM', owner.key, unpack(owner.entries, 1, owner.at)) end
  if owner.rest then call('ZADD', owner.key, '0', owner.rest) end
end

local found = {}
local states = n > 0 and call('HMGET', STATE, unpack(ids)) or {}
local errors = n > 0 and call('HMGET', LAST, unpack(ids)) or {}
local notes = n > 0 and call('HMGET', NOTES, unpack(ids)) or {}
for i, id in ipairs(ids) do
  local state, owner = states[i], owner_of[i]
  local r = state and read_state(state)
  local body = body_of(id)
  local kind, queue = names_of(body or '')
  if r and kind and r.status == 'r' and r.worker == owner then
    found[#found + 1] = {id = id, r = r, body = body, queue = queue, error = errors[i], notes = notes[i]}
  -- A job that another worker runs is left to it; one that cannot be read is set aside.
  elseif not r or (r.status == 'r' and r.worker == owner) then
    count((queue or '') .. '/' .. (kind or '') .. '/r', -1)
    set_aside(id, queue or '', kind, body, state)
    -- Its slot comes back, if the body still names it (model.job.salvaged).
    local text = queue and string.match(body, '"limit":(%b{})')
    local sound, limit = pcall(cjson.decode, text or '')
    if text and sound and type(limit.name) == 'string' then
      local prefix, keys = sub(STATE, 1, -6), {}
      for k, key in ipairs({'subqueue_entries', 'subqueues', 'order', 'dues'}) do
        keys[k] = prefix .. key .. ':' .. queue
      end
      free(subqueues_of(queue, 1, keys), limit.name .. (limit.key and '/' .. limit.key or ''), 1)
    end
  end
end
write_states()

local function older(a, b)
  if a.r.started_at ~= b.r.started_at then return a.r.started_at < b.r.started_at end
  return earlier(a.id, b.id)
end
table.sort(found, older)
local claims, held, set, gates = {}, {}, {}, {}
for i, one in ipairs(found) do
  local r, id, queue = one.r, one.id, one.queue
  r.tail = pack('>I8', r.started_at) .. r.worker
  r.worker, r.token, r.started_at = by, math.max(now, r.token + 1), now
  local state, token8 = write_state(r), pack('>I8', r.token)
  local claimed = held[token8] or {}
  held[token8], claimed[#claimed + 1] = claimed, id
  set[2 * i - 1], set[2 * i] = id, state
  gates[queue] = gates[queue] or call('HMGET', QUEUES, queue .. '/curve', queue .. '/count')
  claims[i] = {one.body, state, one.error, one.notes, gates[queue][1], gates[queue][2]}
end
if #set > 0 then call('HSET', STATE, unpack(set)) end
for token8, claimed in pairs(held) do hold(KEYS[19], token8, table.concat(claimed)) end
for name, owner in pairs(owners) do
  if call('EXISTS', owner.key) == 0 then
    call('ZREM', WORKERS, name)
    call('HDEL', KEYS[16 + #ARGV], name)
    call('ZADD', RETIRED, int(now), name)
  end
end
write_counts()
if #claims > 0 then tick() end
return reply({int(now), claims})
