-- with: ?_packed_ids, ?_waiting, _groups, ?_subqueues
-- Store drafts. ARGV[2..4]: smallest and largest id, and '1' when they ascend; with groups to join also '@' and where
-- these begin: (numbers of the group's key and of `groups`, state and callbacks of a new group or '', ids, queue of the
-- first); for callbacks '#' and where their groups begin: (numbers of the group's key and of `groups`). Then sets of
-- drafts that share queue, kind and time, each (number of the queue's keys, queue, kind, when, '1' with keys, how many),
-- followed by its drafts: (id, tail), with keys (id, tail, slot, key). When: '' now, '+n' after n microseconds, '@n' at
-- that instant. In the form for queues with subqueues a set has two values more, before its drafts: the subqueue of a
-- limit and the limit, the subqueue of a tenant (for a fair queue) and '', or '' and ''.
-- Returns {now, letters}, one per draft: i(nserted) or e(xisting). When a key is held, a group to join is missing or
-- closed, a draft for a group is stored already, or the callbacks of a group are, it returns {now, '?'} and writes
-- nothing: the client then decides by the model's rules in a unit of work.
-- Returns {now, '/'} without writing when a queue is fair and this form of the script does not know subqueues.
-- Ids minted together lie together: if none is stored between the smallest and the largest, all are new.
local mixed = #call('ZRANGEBYLEX', JOBS, '[' .. ARGV[2], '(' .. ARGV[3] .. '\1', 'LIMIT', 0, 1) > 0
local letters, jobs, waits, soon, counts, named, joining = {}, {}, {}, {}, {}, {}, {}
local at, last, w, j, ascend = 5, #ARGV, 0, 0, byte(ARGV[4]) == 49
local joins = tonumber(string.match(ARGV[4], '@(%d+)') or 0)
local closings = tonumber(string.match(ARGV[4], '#(%d+)') or 0)
if closings > 0 then
  last = closings - 1
  for i = closings, #ARGV, 2 do
    local g = read_group(KEYS[tonumber(ARGV[i])], 'p')
    if not (g and g[1]) then return reply({int(now), '?'}) end
  end
end
if joins > 0 then
  last = joins - 1
  for i = joins, #ARGV, 6 do
    local g = read_group(KEYS[tonumber(ARGV[i])], 's', 'closed')
    if not g or g[2] or not (g[1] or ARGV[i + 2] ~= '') then return reply({int(now), '?'}) end
  end
end
-- How many due jobs share a waiting entry: a claim that takes some of them writes the rest anew.
local LARGEST = 50
local HEADER = WITH_SUBQUEUES and 8 or 6
local settings = {}
while at <= last do
  local queue, name, kind, when, keyed = tonumber(ARGV[at]), ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4] == '1'
  local step = keyed and 4 or 2
  local finish = at + HEADER + step * tonumber(ARGV[at + 5])
  local set = settings[name]
  if not set then
    set = call('HMGET', QUEUES, name .. '/used', name .. '/fair')
    settings[name] = set
    if set[2] and not WITH_SUBQUEUES then return {int(now), '/'} end
  end
  local due, due8 = now, now8
  if when ~= '' then
    due = tonumber(sub(when, 2)) + (sub(when, 1, 1) == '+' and now or 0)
    due8 = pack('>I8', due)
  end
  local times, entries = now8 .. due8, waits[queue] or {}
  waits[queue] = entries
  if WITH_SUBQUEUES then
    local subqueue = ARGV[at + 6]
    if subqueue ~= '' and (set[2] or byte(subqueue) ~= 64) then
      entries = {}
      local q = subqueues_of(name, 22 + (queue - 1) * STRIDE)
      joining[#joining + 1] = {q = q, name = subqueue, slot = ARGV[at + 7], due = due, entries = entries}
    end
  end
  local before, priority, parts, l = j, nil, nil, 0
  local most = ascend and due <= now and LARGEST or 1
  for i = at + HEADER, finish - 1, step do
    local id = ARGV[i]
    w = w + 1
    if mixed and body_of(id) then
      if joins > 0 then return {int(now), '?'} end
      letters[w] = 'e'
    else
      if keyed then
        if call('HGET', SLOTS, ARGV[i + 2]) then return {int(now), '?'} end
        named[#named + 1] = i
      end
      local tail = ARGV[i + 1]
      letters[w] = 'i'
      j = j + 2
      jobs[j - 1], jobs[j] = '0', id .. times .. tail
      local p = sub(tail, 1, 2)
      if p ~= priority or l > most then
        priority, parts, l = p, {p .. due8}, 1
        entries[#entries + 1] = parts
      end
      l = l + 1
      parts[l] = id
    end
  end
  if j > before then
    local one = counts[name .. '/' .. kind] or {name, kind, 0}
    counts[name .. '/' .. kind], one[3] = one, one[3] + (j - before) / 2
    if is_soon(due) then soon[queue] = true end
  end
  at = finish
end
if closings > 0 then
  for i = closings, #ARGV, 2 do
    local key = KEYS[tonumber(ARGV[i])]
    call('HDEL', key, 'p')
    call('ZADD', KEYS[tonumber(ARGV[i + 1])], call('HGET', key, 'expires'), key)
  end
end
if j == 0 then return reply({int(now), table.concat(letters)}) end
tick()
call('ZADD', JOBS, unpack(jobs))
for queue, entries in pairs(waits) do
  local flat = {}
  for i, parts in ipairs(entries) do flat[2 * i - 1], flat[2 * i] = '0', table.concat(parts) end
  if #flat > 0 then call('ZADD', WAIT(queue), unpack(flat)) end
end
if WITH_SUBQUEUES then
  local names, flats = {}, {}
  for _, one in ipairs(joining) do
    names[one.q] = names[one.q] or {}
    table.insert(names[one.q], one.name)
  end
  for q, some in pairs(names) do states_of(q, some) end
  for _, one in ipairs(joining) do
    local flat = flats[one.q] or {entries = {}, dues = {}}
    flats[one.q] = flat
    local score = int(one.due)
    for _, parts in ipairs(one.entries) do
      local entry = table.concat(parts)
      local member, n = one.name .. '\0' .. entry, #flat.entries
      flat.entries[n + 1], flat.entries[n + 2], flat.dues[n + 1], flat.dues[n + 2] = '0', member, score, member
      join(one.q, one.name, one.slot, sub(entry, 1, 26), one.due, true)
    end
  end
  for q, flat in pairs(flats) do
    in_parts('ZADD', q.entries, flat.entries)
    in_parts('ZADD', q.dues, flat.dues)
  end
  write_states()
end
for _, i in ipairs(named) do
  call('HSET', SLOTS, ARGV[i + 2], ARGV[i])
  call('ZADD', NAMED, '0', ARGV[i + 3] .. '\0' .. ARGV[i])
end
for _, one in pairs(counts) do
  call('HINCRBY', COUNTS, one[1] .. '/' .. one[2] .. '/p', one[3])
  call('HINCRBY', TOTALS, one[2] .. '/enqueued', one[3])
  if not settings[one[1]][1] then call('HSET', QUEUES, one[1] .. '/used', '1') end
end
if joins > 0 then
  for i = joins, #ARGV, 6 do
    local key, agenda, members = KEYS[tonumber(ARGV[i])], KEYS[tonumber(ARGV[i + 1])], ARGV[i + 4]
    if ARGV[i + 2] ~= '' and not call('HGET', key, 's') then
      call('HSET', key, 's', ARGV[i + 2], 'f', ARGV[i + 3], 'at', int(now), 't', 0, 'd', 0, 'x', 0, 'c', 0)
      list_group(key, agenda, int(now))
    end
    join_group(key, agenda, members, ARGV[i + 5])
    count_group(key, agenda, #members / 16, 0, 0, 0)
  end
end
for queue in pairs(soon) do wake(queue) end
return reply({counted_now(), table.concat(letters)})
