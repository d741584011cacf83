-- with: _packed_ids, _steps, _waiting
-- Every count at one instant. KEYS end with the workers' lease sets. ARGV: now, the names of the queues whose keys are
-- given, in their order.
-- Returns {now, counts, totals, waiting, running}: waiting are queue, how many pending jobs are not due, how many of them
-- are suspended, and since when the oldest due one is ('' for none); running are queue and claim time of each claim. Returns '' when a worker came
-- since the keys were listed, and the name of a queue that has pending jobs and was not given.
local MOST_STEPS = 10000
local given, waiting, running = {}, {}, {}
for i = 2, #ARGV do given[ARGV[i]] = i - 1 end
local after = pack('>I8', now + 1)

-- The due time of the first job of a priority that is due and pending: retrying jobs are in the same set.
local function first_pending(wait, retrying, p)
  local start, steps = '[' .. p, 0
  while steps < MOST_STEPS do
    local got = call('ZRANGEBYLEX', wait, start, '(' .. p .. after, 'LIMIT', 0, 100)
    for _, entry in ipairs(got) do
      if is_entry(entry) and not call('ZSCORE', retrying, sub(entry, 11, 26)) then return parse('>I8', entry, 3) end
    end
    if #got < 100 then return nil end
    start, steps = '(' .. got[#got], steps + 100
  end
end

-- The same over all subqueues of a queue.
local function first_in_subqueues(dues, retrying)
  local at = 0
  while at < MOST_STEPS do
    local got = call('ZRANGEBYSCORE', dues, '-inf', int(now), 'WITHSCORES', 'LIMIT', at, 100)
    for i = 1, #got, 2 do
      local entry = string.match(got[i], '^[^%z]*%z(.*)$') or ''
      if is_entry(entry) and not call('ZSCORE', retrying, sub(entry, 11, 26)) then return tonumber(got[i + 1]) end
    end
    if #got < 200 then return nil end
    at = at + 100
  end
end

local function add_waiting(name)
  local wait, retrying = WAIT(given[name]), RETRYING(given[name])
  local later, oldest, bound = -call('ZCOUNT', retrying, '(' .. int(now), '+inf'), nil, '-'
  while true do
    local head = call('ZRANGEBYLEX', wait, bound, '(\8', 'LIMIT', 0, 1)[1]
    if not head then break end
    if is_entry(head) then
      local p = sub(head, 1, 2)
      local behind = pack('>I2', parse('>I2', p) + 1)
      bound = '[' .. behind
      later = later + call('ZLEXCOUNT', wait, '[' .. p .. after, '(' .. behind)
      local due = first_pending(wait, retrying, p)
      if due and (not oldest or due < oldest) then oldest = due end
    else
      bound = '(' .. head  -- a claim takes it out
    end
  end
  -- Jobs in subqueues. One that is not due yet has an entry of its own.
  later = later + call('ZCOUNT', DUES(given[name]), '(' .. int(now), '+inf')
  local due = first_in_subqueues(DUES(given[name]), retrying)
  if due and (not oldest or due < oldest) then oldest = due end
  local n, suspended = #waiting, call('ZCOUNT', steps.suspended(wait), '(' .. int(now), '+inf')
  waiting[n + 1], waiting[n + 2], waiting[n + 3], waiting[n + 4] = name, later, suspended, oldest and int(oldest) or ''
end

if call('ZCARD', WORKERS) ~= #KEYS - 18 - STRIDE * (#ARGV - 1) then return '' end
local counts, seen = call('HGETALL', COUNTS), {}
for i = 1, #counts, 2 do
  local name, char = string.match(counts[i], '^([^/]*)/[^/]*/(.)$')
  if char == 'p' and counts[i + 1] ~= '0' and not seen[name] then
    if not given[name] then return name end
    seen[name] = true
    guarded(name, add_waiting, name)
  end
end
for i = 19 + STRIDE * (#ARGV - 1), #KEYS do
  for _, id in ipairs(held_by(KEYS[i])) do
    local state = call('HGET', STATE, id)
    local r = state and read_state(state)
    local _, queue = names_of(r and body_of(id) or '')
    local n = #running
    if queue then running[n + 1], running[n + 2] = queue, int(r.started_at) end
  end
end
return reply({int(now), counts, call('HGETALL', TOTALS), waiting, running})
