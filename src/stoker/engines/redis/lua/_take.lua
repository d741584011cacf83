-- Take due jobs out of waiting sets and make them claims. A script may have 200 local names: hence the block.
local new_batch, take_from, entries_of, due_of, take
do

-- What a claim takes from a waiting set: ids, the heads of their entries, which have a state, and entries to put back.
new_batch = function() return {n = 0, ids = {}, heads = {}, with_state = {}, back = {}} end

local function last_at(entry) return has_state(entry) and sub(entry, 11, 26) or sub(entry, -16) end

-- Take jobs in the order of their ids from entries whose ids overlap; the rest goes back.
local function untangle(batch, entries, first, last, n)
  local head, found, left = sub(entries[first], 1, 10), {}, {}
  for i = first, last do
    for _, id in ipairs(ids_at(entries[i])) do found[#found + 1] = {id, has_state(entries[i])} end
  end
  table.sort(found, function(a, b) return earlier(a[1], b[1]) end)
  for _, one in ipairs(found) do
    if batch.n < n then
      batch.n = batch.n + 1
      batch.ids[batch.n], batch.heads[batch.n], batch.with_state[batch.n] = one[1], head, one[2] or nil
    elseif one[2] then
      batch.back[#batch.back + 1] = head .. one[1] .. '+'
    else
      left[#left + 1] = one[1]
    end
  end
  if #left > 0 then batch.back[#batch.back + 1] = head .. table.concat(left) end
end

-- The last entry from i on whose ids overlap with those before it.
local function mixed_until(entries, i)
  local head, highest = sub(entries[i], 1, 10), last_at(entries[i])
  while entries[i + 1] and sub(entries[i + 1], 1, 10) == head and earlier(sub(entries[i + 1], 11, 26), highest) do
    i = i + 1
    local last = last_at(entries[i])
    if earlier(highest, last) then highest = last end
  end
  return i
end

-- Take jobs from entries until there are n. The caller passes one entry more than needed, if there is one.
-- Returns from how many entries.
take_from = function(batch, entries, n)
  local ids, heads, back, i = batch.ids, batch.heads, batch.back, 1
  while entries[i] and batch.n < n do
    local entry = entries[i]
    local size, head = #entry, sub(entry, 1, 10)
    local last = size > 27 and entries[i + 1] and mixed_until(entries, i) or i
    if last > i then
      untangle(batch, entries, i, last, n)
    else
      local b = batch.n
      local room = has_state(entry) and 1 or math.min((size - 10) / 16, n - b)
      for k = 1, room do ids[b + k], heads[b + k] = sub(entry, k * 16 - 5, k * 16 + 10), head end
      batch.n = b + room
      if has_state(entry) then batch.with_state[b + 1] = true
      elseif size > 10 + room * 16 then back[#back + 1] = head .. sub(entry, 11 + room * 16) end
    end
    i = last + 1
  end
  return i - 1
end

local function put_back(wait, batch)
  for _, entry in ipairs(batch.back) do call('ZADD', wait, '0', entry) end
  batch.back = {}
end

-- Entries with n jobs, if there are so many, and one more. `fetch` returns some from a rank on; how many to fetch is
-- guessed from the size of the last entry. `drop` removes bytes that are no entry, and the reading begins anew.
entries_of = function(fetch, n, drop)
  local entries, found, wanted = {}, 0, 2
  while true do
    local more, dropped = fetch(#entries, wanted), false
    local size = 0
    for _, entry in ipairs(more) do
      if is_entry(entry) then
        size = math.floor((#entry - 10) / 16)
        entries[#entries + 1], found = entry, found + size
      else
        drop(entry)
        dropped = true
      end
    end
    if dropped then
      entries, found, wanted = {}, 0, 2
    elseif #more < wanted or found - size >= n then
      return entries
    else
      wanted = math.ceil(math.max(0, n - found) / size) + 1
    end
  end
end

-- Give entries of another score the score 0: byte order holds only among equal scores.
local function level_scores(name, wait)
  if call('ZCOUNT', wait, 0, 0) == call('ZCARD', wait) then return end
  for _, range in ipairs({{'-inf', '(0'}, {'(0', '+inf'}}) do
    for _, entry in ipairs(call('ZRANGEBYSCORE', wait, range[1], range[2])) do
      if is_entry(entry) then call('ZADD', wait, '0', entry) else take_out(name, wait, entry) end
    end
  end
end

-- The first due jobs of a waiting set, at most n, and how many entries were read.
due_of = function(name, wait, n)
  local batch = new_batch()
  local function drop(entry) take_out(name, wait, entry) end
  local entries = entries_of(function(at, c) return call('ZRANGE', wait, at, at + c - 1) end, n, drop)
  if #entries == 0 then return batch, 0 end
  local c = take_from(batch, entries, n)
  if sub(entries[c], 1, 2) == sub(entries[1], 1, 2) and parse('>I8', entries[c], 3) <= now then
    call('ZREMRANGEBYRANK', wait, 0, c - 1)
    put_back(wait, batch)
    return batch, c
  end
  -- Several priorities, or jobs that are not due: take the due jobs of each priority in turn.
  batch = new_batch()
  level_scores(name, wait)
  local priority, after, seen = 0, pack('>I8', now + 1), 0
  while batch.n < n do
    local head = call('ZRANGEBYLEX', wait, '[' .. pack('>I2', priority), '+', 'LIMIT', 0, 1)[1]
    if not head then break end
    if is_entry(head) then
      priority = parse('>I2', head) + 1
      local p = sub(head, 1, 2)
      entries = entries_of(function(at, c)
        return call('ZRANGEBYLEX', wait, '[' .. p, '(' .. p .. after, 'LIMIT', at, c)
      end, n - batch.n, drop)
      c = take_from(batch, entries, n)
      if c > 0 then
        seen = seen + c
        call('ZREMRANGEBYLEX', wait, '[' .. entries[1], '[' .. entries[c])
        put_back(wait, batch)
      end
    else
      drop(head)
    end
  end
  return batch, seen
end

take = function(queue, name, batch, worker, mine, jobs)
  local n, ids, heads, states = batch.n, batch.ids, batch.heads, {}
  if n == 0 then return end
  for i in pairs(batch.with_state) do states[i] = call('HGET', STATE, ids[i]) end
  -- Jobs are mostly claimed in the order of their ids: then one range holds all bodies.
  local bodies = n > 1 and call('ZRANGEBYLEX', JOBS, '[' .. ids[1], '+', 'LIMIT', 0, n) or {}
  local w = pack('>I2', #worker) .. worker
  local fresh = 'r' .. now8 .. w .. pack('>c1I4I4I4I4I4I4I8c1', '0', 1, 0, 0, 0, 0, 0, now, '-')
  local set, claimed, s, h = {}, {}, 0, 0
  local j, kind, pending = #jobs, nil, {}
  for i = 1, n do
    local id, state, body = ids[i], states[i], bodies[i]
    if not body or sub(body, 1, 16) ~= id then body = body_of(id) end
    local k = body and byte(body, 35)
    kind = k and byte(body, 36 + k) and sub(body, 36, 35 + k)
    if kind and not state then
      pending[kind] = (pending[kind] or 0) + 1
      s, h, j = s + 2, h + 1, j + 1
      set[s - 1], set[s] = id, fresh .. heads[i]
      claimed[h] = id
      jobs[j] = body
    else
      local r = kind and names_of(body) and read_state(state)
      if r and (r.status == 'p' or r.status == 'a') then
        count(name .. '/' .. kind .. '/' .. r.status, -1)
        count(name .. '/' .. kind .. '/r', 1)
        if r.status == 'a' then
          call('ZREM', RETRYING(queue), id)
          call('ZREM', UNSUCCESSFUL, 'a' .. id)
        end
        local before = r.status .. (r.token == 0 and '+' or '')  -- '+': never claimed
        local rows = (r.settled == 's' or r.settled == 'S') and steps.brought(id)
        r.status, r.worker, r.cancel_requested, r.settled, r.tail = 'r', worker, '0', '-', ''
        r.token, r.attempts, r.started_at = math.max(now, r.token + 1), r.attempts + 1, now
        s, j = s + 2, j + 1
        set[s - 1], set[s] = id, write_state(r)
        hold(mine, pack('>I8', r.token), id)
        jobs[j] = {body, set[s], call('HGET', LAST, id), call('HGET', NOTES, id), before, rows}
      else
        kind = body and names_of(body)
        count(name .. '/' .. (kind or '') .. '/' .. (state and sub(state, 1, 1) == 'a' and 'a' or 'p'), -1)
        call('ZREM', RETRYING(queue), id)
        set_aside(id, name, kind, body, state)
        batch.unread = batch.unread or {}
        batch.unread[i] = true
      end
    end
  end
  if s > 0 then call('HSET', STATE, unpack(set)) end
  if h > 0 then hold(mine, now8, table.concat(claimed)) end
  for kind_, c in pairs(pending) do
    count(name .. '/' .. kind_ .. '/p', -c)
    count(name .. '/' .. kind_ .. '/r', c)
  end
end
end
