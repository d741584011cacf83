-- with: _packed_ids, _waiting, _groups, ?_subqueues, _steps, _commit, _aside, _take, ?_subqueue_claim, _claim
-- Settle runs, and claim in the same step. ARGV[2]: where the demand begins (0: none). ARGV[3..6]: keep_done and
-- keep_dead of a queue without settings, grace and highest count of a cool-down. ARGV[7]: how many labels, each (number
-- of the queue's keys, queue, kind); then how many workers, each (name, number of the key of its lease set). Then the
-- settlements, each job once: id, fence, traits, and what the traits announce. Neighbours with the same fence, traits and
-- group that announce nothing else come as one, with packed ids.
-- Returns {now, verdicts, claims}, and where there are any the groups that closed and have callbacks, and numbers of
-- queues in which a job waits for a slot that came back. Verdicts: a(pplied) r(epeated) c(anceling) l(ost), and ? when a
-- check of an attached unit of work failed, or a row is there that was taken to be new (`steps.NEW`: how many, each id16 ·
-- name and the row; it may be there if it overwrites): the client reads again and sends that settlement again.
-- Returns {now, '/'} without writing when a job goes back to a fair queue and the settlement does not name its subqueue.
-- The script judges all settlements before its first write, which is a removal.
local demand, keeps, grace, most = tonumber(ARGV[2]), {keep_done = ARGV[3], keep_dead = ARGV[4]}, ARGV[5], ARGV[6]
local at, labels = 8, {}
for i = 1, tonumber(ARGV[7]) do
  local kind, queue = ARGV[at + 2], ARGV[at + 1]
  -- `waiting`: entries of jobs that go back.
  labels[i] = {queue = tonumber(ARGV[at]), name = queue, kind = kind, counts = queue .. '/' .. kind .. '/', waiting = {}}
  at = at + 3
end
local mine = {}
for i = at + 1, at + 2 * tonumber(ARGV[at]), 2 do mine[ARGV[i]] = KEYS[tonumber(ARGV[i + 1])] end
at = at + 1 + 2 * tonumber(ARGV[at])
local REFUND, CRASH, THROTTLED, ERROR, DELETE, RESULT, KEY, COOL, ATTACHED, KEEP = 1, 2, 4, 8, 16, 32, 64, 128, 256, 512
local DUE, GROUP, SUBQUEUE = 1024, 2048, 4096
steps.NEW = 32768
local band = bit.band
local TOTAL = {d = 'completed', a = 'retried', x = 'failed', c = 'canceled'}

local function expiry(status, flags, label, span)
  if band(flags, KEEP) > 0 then return now + span end
  local field = status == 'd' and 'keep_done' or 'keep_dead'
  return now + (tonumber(call('HGET', QUEUES, label.name .. '/' .. field) or nil) or tonumber(keeps[field]))
end

-- Traits: status, flags, label, span. Most settlements of a batch share them: what follows from them is computed once.
local known, all_traits, unlined = {}, {}, false
local function traits_of(text)
  local status, flags, number, span = parse('>c1I2I2I8', text)
  local found = {status = status, flags = flags, label = labels[number], span = span, n = 0, ends = {}}
  -- A suspension (flags ANY and ALL): what makes it due.
  found.settled = band(flags, 8192) > 0 and 's' or band(flags, 16384) > 0 and 'S' or status
  if status ~= 'p' and status ~= 'a' then
    local expires = expiry(status, flags, found.label, span)
    found.score, found.tail = int(expires), now8 .. pack('>I8', expires)
  end
  -- A success that stores at most a result.
  local f = flags % GROUP
  found.plain = status == 'd' and flags < steps.NEW and (f == 0 or f == RESULT or f == KEEP or f == RESULT + KEEP)
  if (status == 'p' or status == 'a') and band(flags, SUBQUEUE) == 0
    and call('HGET', QUEUES, found.label.name .. '/fair') then unlined = true end
  known[text] = found
  all_traits[#all_traits + 1] = found
  return found
end

local function subqueues_at(label) return subqueues_of(label.name, 22 + (label.queue - 1) * STRIDE) end

-- --- judging -----------------------------------------------------------------------------------------------------
local ids, fences, traits, more, n = {}, {}, {}, {}, 0
-- Rows that settlements take to be new, and whose each is.
steps.fields, steps.owners = {}, {}
local group_of, ends_of, agenda = {}, {}, nil
-- By settlement the subqueue that its flag SUBQUEUE names. It begins with '=' (the subqueue of a limit), '!' (the same,
-- and the job keeps its slot until it ends) or '@' (that of a tenant, for a fair queue). A job that goes back has a limit
-- too.
local subqueue_of, slot_of = {}, {}
local last = demand > 0 and demand - 1 or #ARGV
while at <= last do
  local packed, fence, t = ARGV[at], ARGV[at + 1], known[ARGV[at + 2]] or traits_of(ARGV[at + 2])
  local flags, first = t.flags, n + 1
  for i = 16, #packed, 16 do
    n = n + 1
    ids[n], fences[n], traits[n] = sub(packed, i - 15, i), fence, t
  end
  at = at + 3
  if band(flags, SUBQUEUE) > 0 then
    local subqueue, slot = ARGV[at], nil
    at = at + 1
    if t.status == 'p' or t.status == 'a' then slot, at = ARGV[at], at + 1 end
    for i = first, n do subqueue_of[i], slot_of[i] = subqueue, slot end
  end
  if band(flags, GROUP) > 0 then
    local group = KEYS[tonumber(ARGV[at])]
    agenda, at = KEYS[tonumber(ARGV[at + 1])], at + 2
    for i = first, n do group_of[i] = group end
  end
  if flags % GROUP > 0 or flags >= steps.NEW then
    local s = {id = ids[n], traits = t}
    more[n] = s
    if band(flags, ERROR) > 0 then s.error = ARGV[at]; at = at + 1 end
    if band(flags, RESULT) > 0 then s.result = ARGV[at]; at = at + 1 end
    if band(flags, KEY) > 0 then s.slot, s.key = ARGV[at], ARGV[at + 1]; at = at + 2 end
    if band(flags, COOL) > 0 then s.seen, s.delay = ARGV[at], ARGV[at + 1]; at = at + 2 end
    if band(flags, ATTACHED) > 0 then
      s.checks = at
      s.writes = after_checks(at)
      at = after_writes(s.writes)
    end
    if flags >= steps.NEW then
      s.rows, at = at, at + 1 + 2 * tonumber(ARGV[at])
      for i = s.rows + 1, at - 1, 2 do
        local k = #steps.fields + 1
        if not steps.overwrites(ARGV[i + 1]) then steps.fields[k], steps.owners[k] = ARGV[i], s end
      end
      s.behind = at
    end
  end
end
if unlined then return {int(now), '/'} end
local states = n > 0 and call('HMGET', STATE, unpack(ids)) or {}
for first = 1, #steps.fields, 1000 do
  local found = call('HMGET', steps.rows, unpack(steps.fields, first, math.min(first + 999, #steps.fields)))
  for i, row in ipairs(found) do if row then steps.owners[first + i - 1].met = true end end
end
local verdicts, rest, a = {}, {}, 0
local sets, c = {}, 0
local results, trouble = {}, {}
-- Slots that come back, by queue and subqueue, and queues where a job waits for one.
local freed, waited = {}, {}

local function put(id, state)
  c = c + 2
  sets[c - 1], sets[c] = id, state
end

-- Finish a job whose state lacks only when it ended and expires.
local function ended(id, t, state)
  put(id, state .. t.tail)
  t.ends[#t.ends + 1] = id
end

-- Jobs claimed together have states that differ only in the last ten bytes, priority and due time: what such a state
-- becomes by a plain success is computed once, as bytes. Offsets behind the fence: 1 cancel_requested, 2 attempts, 6
-- base, 10 crashes, 14 throttles (0 after a success), 18 errors, 22 version, 26 started_at, 34 settled.
local succeeded, fence_of, released = {}, {}, {}

-- model.run_origins.number, as four bytes: what a finished job has in place of a worker.
local numbers = {}
local function origin_of(worker)
  local found = numbers[worker]
  if not found then
    found = pack('>I4', tonumber(sub(redis.sha1hex(worker), 1, 8), 16) % 2147483648)
    numbers[worker] = found
  end
  return found
end

local function success(state, before, fence)
  local f = #fence
  if sub(before, 1, f) ~= fence or #before < f + 34 then return nil end
  local after = 'd' .. sub(state, 2, 9) .. '\0\4' .. origin_of(sub(fence, 12)) .. sub(state, f + 1, f + 13) .. '\0\0\0\0' .. sub(state, f + 18, f + 33) .. 'd'
  succeeded[before], fence_of[before] = after, fence
  return after
end

local function judge(s, state, fence, status)
  local f = #fence
  if not state then return 'l' end
  if sub(state, 1, f) == fence and #state >= f + 44 then
    if status ~= 'd' and status ~= 'c' and sub(state, f + 1, f + 1) == '1' then return 'c' end
    if s.met or (s.checks and not checked(s.checks)) then return '?' end
    return 'a'
  end
  if sub(state, 2, 9) == sub(fence, 2, 9) and sub(state, 1, 1) ~= 'r' then
    local r = read_state(state)
    if r and r.settled == s.traits.settled then return 'r' end
  end
  return 'l'
end

for i = 1, n do
  local id, fence, t, state = ids[i], fences[i], traits[i], states[i]
  local verdict, after
  if t.plain and state then
    local before = sub(state, 1, #fence + 34)
    after = succeeded[before]
    if after then
      if fence_of[before] ~= fence then after = nil end
    else
      after = success(state, before, fence)
    end
  end
  if after then
    verdict = 'a'
    c = c + 2
    sets[c - 1], sets[c] = id, after .. sub(state, #fence + 35, #fence + 44) .. t.tail
    local ends = t.ends
    ends[#ends + 1] = id
    if more[i] and more[i].result then results[#results + 1] = more[i] end
    trouble[t.label.kind] = ''
  else
    local s = more[i] or {id = id, traits = t}
    verdict = judge(s, state, fence, t.status)
    if verdict == 'a' then
      s.state, s.subqueue, s.limit = state, subqueue_of[i], slot_of[i]
      rest[#rest + 1] = s
      if t.status == 'd' then trouble[t.label.kind] = ''
      elseif s.error and (t.status == 'x' or t.status == 'a') then trouble[t.label.kind] = s.error end
    end
  end
  if verdict == 'a' then
    a = a + 1
    t.n = t.n + 1
    local gone = released[fence]
    if not gone then gone = {}; released[fence] = gone end
    gone[#gone + 1] = id
    local subqueue = subqueue_of[i]
    if subqueue and byte(subqueue) ~= 64 and not (byte(subqueue) == 33 and slot_of[i]) then
      freed[#freed + 1] = {t.label, sub(subqueue, 2), byte(subqueue) == 33 and id}
    end
    local group = group_of[i]
    if group then
      local ends = ends_of[group]
      if not ends then ends = {d = 0, x = 0, c = 0}; ends_of[group] = ends end
      if ends[t.status] then ends[t.status] = ends[t.status] + 1 end
    end
  end
  verdicts[i] = verdict
end

-- --- writing -----------------------------------------------------------------------------------------------------
-- model.throttle.cooled; how long a window is has been decided by model.throttle.cooldown_delay.
local function cool(label, seen, delay)
  local open, counter = label.name .. '/until', label.name .. '/count'
  local row = call('HMGET', QUEUES, open, counter)
  local till, times = tonumber(row[1] or nil) or -1, tonumber(row[2] or nil) or 0
  if delay == '' then
    if times > 0 and till + tonumber(grace) <= now then call('HDEL', QUEUES, open, counter) end
  elseif times == tonumber(seen) and till <= now then
    call('HSET', QUEUES, open, int(now + tonumber(delay)), counter, math.min(times + 1, tonumber(most)))
  end
end

local function erase(s, errors)
  local id = s.id
  call('ZREMRANGEBYLEX', JOBS, '[' .. id, '(' .. id .. '\1')
  for _, key in ipairs({STATE, LAST, NOTES}) do call('HDEL', key, id) end
  for i = 0, math.min(errors, 32) - 1 do call('HDEL', ERRORS, id .. string.char(i)) end
  if s.key then call('ZREM', NAMED, s.key .. '\0' .. id) end
  steps.drop(id)
end

-- By queue: when suspended jobs are due, and their ids.
steps.sleeping = {}

local function conclude(s)
  local id, t = s.id, s.traits
  local label, status, flags = t.label, t.status, t.flags
  local r = read_state(s.state)
  -- Record._origin: a reaped claim ends for the worker it was taken from, but for success.
  local origin = origin_of(status ~= 'd' and r.tail ~= '' and sub(r.tail, 9) or r.worker)
  if s.error then
    call('HSET', LAST, id, s.error)
    call('HSET', ERRORS, id .. string.char(r.errors % 32), now8 .. pack('>I4', r.attempts) .. origin .. s.error)
    r.errors = r.errors + 1
  end
  if band(flags, REFUND) > 0 then r.attempts = math.max(0, r.attempts - 1) end
  if band(flags, CRASH) > 0 then r.crashes = r.crashes + 1 end
  if band(flags, THROTTLED) > 0 then r.throttles = r.throttles + 1 end
  if status == 'd' then
    r.throttles = 0
    call('HDEL', LAST, id)
  end
  r.status, r.worker, r.settled, r.tail = status, (status == 'p' or status == 'a') and '' or origin, t.settled, ''
  if t.settled ~= status then r.base, r.crashes = r.attempts, 0 end  -- a suspension
  if status == 'p' or status == 'a' then
    r.scheduled_at = band(flags, DUE) > 0 and t.span or now + t.span  -- lifecycle.due_again
    local entry, subqueue = waiting_entry(r.priority, r.scheduled_at, id), s.subqueue
    local mark = subqueue and byte(subqueue)
    if mark == 33 then
      local q = subqueues_at(label)
      call('ZADD', q.order, '0', kept(sub(subqueue, 2), id))
    end
    if mark == 61 then
      put_into_subqueue(subqueues_at(label), sub(subqueue, 2), entry, s.limit, false)
    elseif mark == 64 and is_fair(subqueues_at(label)) then
      put_into_subqueue(subqueues_at(label), subqueue, entry, '', false)
    else
      local w = #label.waiting
      label.waiting[w + 1], label.waiting[w + 2] = '0', entry
    end
    if status == 'a' then
      call('ZADD', RETRYING(label.queue), int(r.scheduled_at), id)
      call('ZADD', UNSUCCESSFUL, '0', 'a' .. id)
    end
    if r.scheduled_at <= now then
      wake(label.queue)
    elseif t.settled ~= status then
      local those = steps.sleeping[label.queue] or {}
      steps.sleeping[label.queue] = those
      those[#those + 1], those[#those + 2] = int(r.scheduled_at), id
    end
    put(id, write_state(r))
  else
    if s.slot and call('HGET', SLOTS, s.slot) == id then call('HDEL', SLOTS, s.slot) end
    if band(flags, DELETE) > 0 then
      erase(s, r.errors)
    else
      ended(id, t, write_state(r))
      if s.result then results[#results + 1] = s end
      if status ~= 'd' then call('ZADD', UNSUCCESSFUL, '0', status .. id) end
    end
  end
  if s.delay then cool(label, s.seen, s.delay) end
  if s.writes then written(s.writes) end
  if s.rows then
    for i = s.rows + 1, s.behind - 1, 2 do
      local store = steps.overwrites(ARGV[i + 1]) and steps.put or steps.add
      store(ARGV[i], ARGV[i + 1])
    end
  end
end

if a > 0 then
  for fence, gone in pairs(released) do let_go(mine[sub(fence, 12)], sub(fence, 2, 9), gone) end
  local named = {}
  for _, one in ipairs(freed) do
    local label = one[1]
    named[label] = named[label] or {}
    table.insert(named[label], one[2])
  end
  for label, names in pairs(named) do states_of(subqueues_at(label), names) end
  for _, one in ipairs(freed) do
    local label = one[1]
    local q = subqueues_at(label)
    if free(q, one[2], 1) then waited[label.queue] = true end
    if one[3] then call('ZREM', q.order, kept(one[2], one[3])) end
  end
  for _, s in ipairs(rest) do conclude(s) end
  for _, label in ipairs(labels) do
    if #label.waiting > 0 then call('ZADD', WAIT(label.queue), unpack(label.waiting)) end
  end
  steps.flush()
  for queue, those in pairs(steps.sleeping) do
    -- An entry counts until its time. Those whose time has come, and that a claim took, are removed by the next one.
    call('ZREMRANGEBYSCORE', steps.suspended(WAIT(queue)), '-inf', int(now))
    call('ZADD', steps.suspended(WAIT(queue)), unpack(those))
  end
  for _, s in ipairs(results) do call('HSET', RESULTS, s.id, s.result) end
  if c > 0 then call('HSET', STATE, unpack(sets)) end
  for _, t in ipairs(all_traits) do
    local label, status = t.label, t.status
    if #t.ends > 0 then
      call('ZADD', ENDS, t.score, table.concat(t.ends))
      kept_for(t.score)
    end
    if t.n > 0 then
      count(label.counts .. 'r', -t.n)
      if band(t.flags, DELETE) == 0 then count(label.counts .. status, t.n) end
      if status ~= 'p' then call('HINCRBY', TOTALS, label.kind .. '/' .. TOTAL[status], t.n) end
    end
  end
  for kind, error in pairs(trouble) do
    if error == '' then call('HDEL', TOTALS, kind .. '/error') else call('HSET', TOTALS, kind .. '/error', error) end
  end
  -- Behind the follow-ups: a job that adds members to its group is counted after them.
  for group, e in pairs(ends_of) do count_group(group, agenda, 0, e.d, e.x, e.c) end
end
local wakes = {}
if WITH_SUBQUEUES then
  write_states()
  -- A slot that came back wakes a waiter, unless this call asks for jobs of the queue.
  for i = demand + 3, demand > 0 and #ARGV or 0, 3 do waited[tonumber(ARGV[i])] = nil end
  for queue in pairs(waited) do
    wake(queue)
    wakes[#wakes + 1] = queue
  end
end
local claims = demand > 0 and claim(demand) or {}
write_counts()
if a > 0 or #claims > 0 then tick() end
if #completed == 0 and #wakes == 0 then return reply({counted_now(), table.concat(verdicts), claims}) end
return reply({counted_now(), table.concat(verdicts), claims, completed, wakes})
