-- The first door. ARGV[2..4]: smallest and largest id, '1' when they ascend. Then parcels of drafts that share queue,
-- kind and time, each (number of the queue's keys, queue, kind, when, '1' with keys, how many), followed by its drafts:
-- (id, tail), with keys (id, tail, slot, key). When: '' now, '+n' after n microseconds, '@n' at that instant.
-- Answers {now, word}: one letter per draft, i(nserted) or e(xisting). A key that is held makes it {now, '?'} and
-- nothing is written: the client decides by the rules and commits.
-- Ids minted together lie together: if none is stored between the smallest and the largest, all are new.
local mixed = #call('ZRANGEBYLEX', JOBS, '[' .. ARGV[2], '(' .. ARGV[3] .. '\1', 'LIMIT', 0, 1) > 0
local word, jobs, waits, soon, counts, named = {}, {}, {}, {}, {}, {}
local at, last, w, j, ascend = 5, #ARGV, 0, 0, ARGV[4] == '1'
-- Jobs that are due stand in line together, so many at most: whoever takes some of them writes the rest anew.
local LARGEST = 50
while at <= last do
  local queue, name, kind, when, keyed = tonumber(ARGV[at]), ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4] == '1'
  local step = keyed and 4 or 2
  local finish = at + 6 + step * tonumber(ARGV[at + 5])
  local due, due8 = now, now8
  if when ~= '' then
    due = tonumber(sub(when, 2)) + (sub(when, 1, 1) == '+' and now or 0)
    due8 = pack('>I8', due)
  end
  local times, line = now8 .. due8, waits[queue] or {}
  waits[queue] = line
  local before, priority, lot, l = j, nil, nil, 0
  local most = ascend and due <= now and LARGEST or 1
  for i = at + 6, finish - 1, step do
    local id = ARGV[i]
    w = w + 1
    if mixed and body_of(id) then
      word[w] = 'e'
    else
      if keyed then
        if call('HGET', SLOTS, ARGV[i + 2]) then return {int(now), '?'} end
        named[#named + 1] = i
      end
      local tail = ARGV[i + 1]
      word[w] = 'i'
      j = j + 2
      jobs[j - 1], jobs[j] = '0', id .. times .. tail
      local p = sub(tail, 1, 2)
      if p ~= priority or l > most then
        priority, lot, l = p, {p .. due8}, 1
        line[#line + 1] = lot
      end
      l = l + 1
      lot[l] = id
    end
  end
  if j > before then
    counts[#counts + 1] = {name, kind, (j - before) / 2}
    if is_soon(due) then soon[queue] = true end
  end
  at = finish
end
if j == 0 then return {int(now), table.concat(word)} end
tick()
call('ZADD', JOBS, unpack(jobs))
for queue, line in pairs(waits) do
  local places = {}
  for i, lot in ipairs(line) do places[2 * i - 1], places[2 * i] = '0', table.concat(lot) end
  if #places > 0 then call('ZADD', WAIT(queue), unpack(places)) end
end
for _, i in ipairs(named) do
  call('HSET', SLOTS, ARGV[i + 2], ARGV[i])
  call('ZADD', NAMED, '0', ARGV[i + 3] .. '\0' .. ARGV[i])
end
for _, one in ipairs(counts) do
  call('HINCRBY', COUNTS, one[1] .. '/' .. one[2] .. '/p', one[3])
  call('HINCRBY', TOTALS, one[2] .. '/enqueued', one[3])
  call('HSETNX', QUEUES, one[1] .. '/used', '1')
end
for queue in pairs(soon) do wake(queue) end
return {told(), table.concat(word)}
