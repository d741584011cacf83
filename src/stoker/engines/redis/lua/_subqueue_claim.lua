-- A claim of a queue with subqueues (shared.subqueue_claim; model.subqueues). A script may have 200 local names: hence
-- the block.
local claim_from_subqueues, has_more
do

-- What a claim reads of a subqueue it reads once, mostly: then it knows also what is left. `source.entries` are due
-- entries of one priority in order, without the name of the subqueue; `complete`: no others of this priority are due;
-- `behind`: what follows them, '' for nothing.
local read_entries
read_entries = function(q, source, n)
  local prefix = source.name .. '\0'
  local size, wanted, entries = #prefix, n + 1, {}
  local got = call('ZRANGEBYLEX', q.entries, '[' .. prefix .. source.p, '(' .. source.name .. '\1', 'LIMIT', 0, wanted)
  source.entries, source.complete, source.behind = entries, #got < wanted, #got < wanted and '' or nil
  for i = 1, #got do
    local entry = sub(got[i], size + 1)
    if not is_entry(entry) then
      take_out(q.name, q.entries, entry, source.name, q.dues)
      return read_entries(q, source, n)
    end
    if sub(entry, 1, 2) ~= source.p or parse('>I8', entry, 3) > now then
      source.complete, source.behind = true, entry
      break
    end
    entries[i] = entry
  end
end

-- The first n jobs of what was read, and of how many entries; nil if more entries have to be read for them.
local function jobs_of(source, n)
  local entries, jobs = source.entries, 0
  for i = 1, source.complete and #entries or #entries - 1 do
    jobs = jobs + math.floor((#entries[i] - 10) / 16)
  end
  if jobs < n and (not source.complete or source.behind ~= '') then return nil end
  local batch = new_batch()
  return batch, take_from(batch, entries, n)
end

-- The first n due jobs of a subqueue or, without a name, of the waiting set, over all priorities; they stay. `taken`
-- are their entries.
local function peek(q, wait, name, n)
  local prefix, stop, key = name and name .. '\0' or '', name and '(' .. name .. '\1' or '+', name and q.entries or wait
  local size, batch, priority, after = #prefix, new_batch(), 0, pack('>I8', now + 1)
  batch.taken = {}
  local function drop(entry) take_out(q.name, key, entry, name, name and q.dues) end
  while batch.n < n do
    local head = call('ZRANGEBYLEX', key, '[' .. prefix .. pack('>I2', priority), stop, 'LIMIT', 0, 1)[1]
    if not head then break end
    head = sub(head, size + 1)
    if is_entry(head) then
      local p = sub(head, 1, 2)
      priority = parse('>I2', p) + 1
      local from, to = '[' .. prefix .. p, '(' .. prefix .. p .. after
      local entries = entries_of(function(at, c)
        local got = call('ZRANGEBYLEX', key, from, to, 'LIMIT', at, c)
        if size > 0 then
          for i = 1, #got do got[i] = sub(got[i], size + 1) end
        end
        return got
      end, n - batch.n, drop)
      for i = 1, take_from(batch, entries, n) do batch.taken[#batch.taken + 1] = entries[i] end
    else
      drop(head)
    end
  end
  return batch
end

-- model.subqueues.room
local function room(s, wanted)
  local most = s.pinned or s.number
  if most then wanted = math.min(wanted, most - s.running) end
  if s.bucket then wanted = math.min(wanted, math.floor(level(s.bucket))) end
  return math.max(0, wanted)
end

-- The first n open subqueues by head ('h', names from byte 28) or by turn ('t', from byte 18). Left out: those to be
-- looked at, whose head may be gone, those whose head a clock that was set back made a later job, and those whose state
-- is lost.
local function open_states(q, sort, from, n)
  local found, bound = {}, '[' .. sort
  local behind = '(' .. string.char(byte(sort) + 1)
  while #found < n do
    local wanted = n - #found
    local members, names = call('ZRANGEBYLEX', q.order, bound, behind, 'LIMIT', 0, wanted), {}
    for i, member in ipairs(members) do names[i] = sub(member, from) end
    local known = states_of(q, names)
    for i, name in ipairs(names) do
      local s = known[name]
      if s.lost then call('ZREM', q.order, members[i])
      elseif not (s.next and s.next <= now) and parse('>I8', s.head, 3) <= now then found[#found + 1] = s end
    end
    if #members < wanted then break end
    bound = '(' .. members[#members]
  end
  return found
end

-- Look at what was touched, at most `most`; returns how many.
local function look_again(q, turn, most)
  local members, names = call('ZRANGEBYLEX', q.order, '[n', '(n' .. pack('>I8', now + 1), 'LIMIT', 0, most), {}
  for i, member in ipairs(members) do names[i] = sub(member, 10) end
  local known = states_of(q, names)
  for i, name in ipairs(names) do
    if not known[name].lost then
      local first, later = look(q, name)
      looked(changing(q, known[name]), first, later, turn)
    else
      call('ZREM', q.order, members[i])
    end
  end
  write_states()
  return #names
end

-- A heap of sources, subqueues and the waiting set, by their next job.
local function push(heap, one)
  local i = #heap + 1
  heap[i] = one
  while i > 1 do
    local up = math.floor(i / 2)
    if not before(heap[i].head, heap[up].head) then break end
    heap[i], heap[up] = heap[up], heap[i]
    i = up
  end
end

local function pop(heap)
  local first, n = heap[1], #heap
  heap[1] = heap[n]
  heap[n] = nil
  local i = 1
  while true do
    local down = 2 * i
    if not heap[down] then break end
    if heap[down + 1] and before(heap[down + 1].head, heap[down].head) then down = down + 1 end
    if not before(heap[down].head, heap[i].head) then break end
    heap[i], heap[down] = heap[down], heap[i]
    i = down
  end
  return first
end

-- The next job of a source of which more than the head may start: read some at a time, more when these are taken.
local function advance(q, wait, source, left)
  source.at = source.at + 1
  local most = math.min(source.room, source.at - 1 + left)
  if source.at > most then return false end
  if source.at > source.batch.n then
    if source.batch.n < source.read then return false end
    source.read = math.min(most, source.name and 2 * source.read or math.max(8, 8 * source.read))
    local batch
    if source.name and source.read <= 8 then
      read_entries(q, source, source.read)
      batch = jobs_of(source, source.read)
    end
    source.batch = batch or peek(q, wait, source.name, source.read)
    if source.at > source.batch.n then return false end
  end
  source.head = source.batch.heads[source.at] .. source.batch.ids[source.at]
  return true
end

-- What a claim takes: jobs by source, what is removed from subqueues for them and put back there, the sources in the order
-- of their jobs, and where it is known the first job that is left ('' for none). MAIN is the waiting set.
local MAIN = {}
local function new_plan() return {sources = {}, batches = {}, names = {}, gone = {}, back = {}, rest = {}} end

-- Add jobs of a subqueue to a plan.
local function add_jobs(plan, name, batch, gone)
  for _, entry in ipairs(gone) do plan.gone[#plan.gone + 1] = name .. '\0' .. entry end
  for _, entry in ipairs(batch.back) do
    local k = #plan.back
    plan.back[k + 1], plan.back[k + 2] = int(parse('>I8', entry, 3)), name .. '\0' .. entry
  end
  local known = plan.batches[name]
  if not known then
    plan.batches[name], plan.names[#plan.names + 1] = batch, name
    return
  end
  for i = 1, batch.n do
    local at = known.n + 1
    known.n, known.ids[at], known.heads[at], known.with_state[at] = at, batch.ids[i], batch.heads[i], batch.with_state[i]
  end
end

-- Take n jobs of a subqueue. `source`: what was read of it already.
local function take_from_subqueue(q, wait, plan, s, n, source)
  source = source or {name = s.name, p = sub(s.head, 1, 2)}
  if not source.entries then read_entries(q, source, n) end
  local entry = n == 1 and source.entries[1]
  if entry and #entry < 28 then
    -- The frequent case: one job, which has an entry of its own.
    local name, second, behind = s.name, source.entries[2], source.behind
    plan.gone[#plan.gone + 1] = name .. '\0' .. entry
    plan.batches[name] = {n = 1, ids = {sub(entry, 11, 26)}, heads = {sub(entry, 1, 10)}, with_state = {has_state(entry) or nil}}
    plan.names[#plan.names + 1] = name
    if second then plan.rest[name] = sub(second, 1, 26)
    elseif behind == '' then plan.rest[name] = ''
    elseif behind and parse('>I8', behind, 3) <= now then plan.rest[name] = sub(behind, 1, 26) end
    return 1
  end
  local batch, c = jobs_of(source, n)
  if not batch then
    batch = peek(q, wait, s.name, n)
    add_jobs(plan, s.name, batch, batch.taken)
    return batch.n
  end
  local gone, entries, behind = {}, source.entries, source.behind
  for i = 1, c do gone[i] = entries[i] end
  local rest = entries[c + 1] and sub(entries[c + 1], 1, 26) or behind == '' and '' or nil
  if not rest and behind and parse('>I8', behind, 3) <= now then rest = sub(behind, 1, 26) end
  for _, entry in ipairs(batch.back) do
    if not rest or rest == '' or before(entry, rest) then rest = sub(entry, 1, 26) end
  end
  plan.rest[s.name] = rest
  add_jobs(plan, s.name, batch, gone)
  return batch.n
end

-- Write what a plan removes from subqueues and puts back there.
local function write_entries(q, plan)
  in_parts('ZREM', q.entries, plan.gone)
  in_parts('ZREM', q.dues, plan.gone)
  if #plan.back > 0 then
    in_parts('ZADD', q.dues, plan.back)
    for i = 1, #plan.back, 2 do plan.back[i] = '0' end
    in_parts('ZADD', q.entries, plan.back)
  end
  plan.gone, plan.back = {}, {}
end

-- The first n jobs by priority, due time and id. They are among those of the first n subqueues by head.
-- `first_only`: of those that an operator put first.
local function in_order(q, wait, n, first_only)
  local plan, heap, counts, order, reads = new_plan(), {}, {}, {}, {}
  local states, i, c = open_states(q, 'h', 28, n), 1, 0
  local main = {room = n, at = 0, read = 0, batch = new_batch()}
  if advance(q, wait, main, n) then push(heap, main) end
  while c < n do
    local s, first = states[i], heap[1]
    if first_only and not (s and is_first(s.head)) and not (first and is_first(first.head)) then break end
    if s and (not first or before(s.head, first.head)) then
      i = i + 1
      local some = room(s, n - c)
      if some > 0 then
        c = c + 1
        plan.sources[c], counts[s.name], order[#order + 1] = s.name, 1, s
        if some > 1 then
          local source = {name = s.name, room = some, at = 1, read = 1, batch = {n = 1}, p = sub(s.head, 1, 2)}
          reads[s.name] = source
          if advance(q, wait, source, n - c) then push(heap, source) end
        end
      end
    elseif first then
      local name = first.name or MAIN
      c = c + 1
      plan.sources[c], counts[name] = name, (counts[name] or 0) + 1
      pop(heap)
      if advance(q, wait, first, n - c) then push(heap, first) end
    else
      break
    end
  end
  for _, s in ipairs(order) do take_from_subqueue(q, wait, plan, s, counts[s.name], reads[s.name]) end
  if counts[MAIN] then plan.batches[MAIN] = due_of(q.name, wait, counts[MAIN]) end
  return plan
end

-- The waiting set first: it holds what was stored before the queue became fair. Then subqueues in turn, at most `each`
-- jobs of one: the first of each, the second of each, and so on.
local function in_turn(q, wait, n)
  local plan = new_plan()
  plan.batches[MAIN] = due_of(q.name, wait, n)
  local left = n - plan.batches[MAIN].n
  for i = 1, n - left do plan.sources[i] = MAIN end
  local states = left > 0 and open_states(q, 't', 18, left) or {}
  if #states == 0 then return plan end
  local each, wanted, over = math.ceil(left / #states), {}, -left
  for i, s in ipairs(states) do
    wanted[i] = room(s, each)
    over = over + wanted[i]
  end
  -- Those whose turn is last get one less; where another one has fewer jobs than it may start, they get it after all.
  local last = {}
  for i = #states, 1, -1 do
    if over > 0 and wanted[i] == each then
      over, wanted[i] = over - 1, each - 1
      table.insert(last, 1, i)
    end
  end
  local got, short = {}, math.max(0, -over)
  for i, s in ipairs(states) do
    got[i] = wanted[i] > 0 and take_from_subqueue(q, wait, plan, s, wanted[i]) or 0
    short = short + wanted[i] - got[i]
  end
  if short > 0 then write_entries(q, plan) end
  for _, i in ipairs(last) do
    if short > 0 and got[i] == each - 1 then
      local name = states[i].name
      local more = peek(q, wait, name, 1)
      plan.rest[name] = nil
      add_jobs(plan, name, more, more.taken)
      got[i], short = got[i] + more.n, short - more.n
    end
  end
  for place = 1, each do
    for i, s in ipairs(states) do
      if got[i] >= place then plan.sources[#plan.sources + 1] = s.name end
    end
  end
  return plan
end

-- Claim up to n jobs of a queue with subqueues; returns whether a further call may find more.
claim_from_subqueues = function(q, queue, n, worker, mine, jobs, first_only)
  local count_before, counted, looks, wait, start = claims_of(q), false, 0, WAIT(queue), #jobs
  while true do
    local most = $MOST_LOOKS$ - looks
    if most == 0 then return true end
    see_heads(q)
    local found = look_again(q, 2 * count_before + 1, most)
    looks = looks + found
    local some = n - (#jobs - start)
    local plan = is_fair(q) and not first_only and in_turn(q, wait, some) or in_order(q, wait, some, first_only)
    write_entries(q, plan)
    -- One batch in the order of the plan.
    local batch, at = new_batch(), {}
    for i, name in ipairs(plan.sources) do
      local from, k = plan.batches[name], (at[name] or 0) + 1
      -- A subqueue may hold fewer jobs than its state says only if another program wrote to it.
      if from.ids[k] then
        at[name], batch.n = k, batch.n + 1
        batch.ids[batch.n], batch.heads[batch.n] = from.ids[k], from.heads[k]
        batch.with_state[batch.n] = from.with_state[k]
      end
    end
    take(queue, q.name, batch, worker, mine, jobs)
    local unreadable = 0
    for _ in pairs(batch.unread or {}) do unreadable = unreadable + 1 end
    if #plan.names > 0 then
      if not counted then
        counted = true
        call('HSET', QUEUES, q.name .. '/claims', int(count_before + 1))
      end
      -- model.subqueues.served; a job that cannot be read has not started.
      local unread = unreadable > 0 and {} or nil
      for i in pairs(batch.unread or {}) do unread[batch.ids[i]] = true end
      for _, name in ipairs(plan.names) do
        local s, given = changing(q, q.known[name]), plan.batches[name]
        local started = given.n
        for i = 1, unread and given.n or 0 do
          if unread[given.ids[i]] then started = started - 1 end
        end
        if s.limited then s.running = s.running + started end
        local b = s.bucket
        if b then b.tokens, b.at = level(b) - started, math.max(now, b.at) end
        -- Where it is known what is left, no look is needed: `next` says when the first of the others is due.
        local first, later = plan.rest[name], s.next
        if b or not first then first, later = look(q, name) elseif first == '' then first = nil end
        s.head, s.next, s.at = nil, now, nil
        looked(s, first, later, 2 * count_before + 2)
      end
      write_states()
    end
    local left = n - (#jobs - start)
    if left <= 0 then return false end
    if found < most and unreadable == 0 and (#plan.sources == 0 or not is_fair(q)) then return false end
  end
end

has_more = function(q, wait)
  local head = call('ZRANGE', wait, 0, 0)[1]
  if head and (not is_entry(head) or parse('>I8', head, 3) <= now) then return true end
  return #call('ZRANGEBYLEX', q.order, '[h', '(i', 'LIMIT', 0, 1) > 0
    or #call('ZRANGEBYLEX', q.order, '[n', '(n' .. pack('>I8', now + 1), 'LIMIT', 0, 1) > 0
end
end
