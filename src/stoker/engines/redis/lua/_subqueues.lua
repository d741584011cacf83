-- Subqueues (model.subqueues; FORMAT.md). A script changes states in `known`, and `write_states` writes them.
-- An entry of a subqueue is its name, a zero byte, and a waiting entry.
-- A script may have 200 local names: hence the block.
local subqueues_of, level, is_full, states_of, subqueue_state, changing, in_parts, write_states, claims_of, see_heads,
  is_fair, before, touch, join, put_into_subqueue, free, kept, found_in_subqueue, leave_subqueue, look, looked, restored, pins_of
do
local queues, queue_list, band = {}, {}, bit.band

-- The subqueues of a queue. `at`: the number of the first of its four keys, in KEYS unless others are given.
subqueues_of = function(name, at, keys)
  local q = queues[name]
  if not q then
    keys = keys or KEYS
    q = {name = name, entries = keys[at], states = keys[at + 1], order = keys[at + 2], dues = keys[at + 3], known = {},
      changed = {}}
    queues[name] = q
    queue_list[#queue_list + 1] = q
  end
  return q
end

-- --- rates: model.throttle -----------------------------------------------------------------------------------------
level = function(b) return math.min(b.burst, b.tokens + math.max(0, now - b.at) / 1000000 * (b.n / b.per)) end

local function until_token(b)
  local missing = 1 - level(b)
  if missing <= 0 then return 0 end
  return math.min(math.max(0, b.at - now) + math.ceil(math.min(missing / (b.n / b.per), 60) * 1000000), $LONGEST_SLEEP$)
end

local function until_full(b)
  return math.min(math.max(1, math.ceil((b.burst - level(b)) / (b.n / b.per) * 1000000)), 60000000)
end

-- --- states --------------------------------------------------------------------------------------------------------
local NUMBER, PINNED, NEXT, AT, SINCE, HEAD, BUCKET, UNSEEN = 1, 2, 4, 8, 16, 32, 64, 128

is_full = function(s)
  local most = s.pinned or s.number
  return most and s.running >= most
end

local function is_open(s) return s.head and not is_full(s) end

local function is_gone(s)
  return not s.head and not s.next and s.running == 0 and (not s.bucket or level(s.bucket) >= s.bucket.burst)
end

-- Is this a whole state?
local function is_state(raw)
  local flags = byte(raw) or 0
  return #raw == 45 + (band(flags, HEAD) > 0 and 26 or 0) + (band(flags, BUCKET) > 0 and 40 or 0)
    + (band(flags, UNSEEN) > 0 and 8 or 0)
end

local function read_subqueue(s, raw)
  local flags, number, pinned, running, next_, at, turn, since, place = parse('>BI4I4I4I8I8I8I8', raw)
  s.running, s.turn = running, turn
  if band(flags, NUMBER) > 0 then s.number = number end
  if band(flags, PINNED) > 0 then s.pinned = pinned end
  if band(flags, NEXT) > 0 then s.next = next_ end
  if band(flags, AT) > 0 then s.at = at end
  if band(flags, SINCE) > 0 then s.since = since end
  if band(flags, HEAD) > 0 then s.head, place = sub(raw, place, place + 25), place + 26 end
  if band(flags, BUCKET) > 0 then
    local b = {}
    b.n, b.per, b.burst, b.tokens, b.at, place = parse('>ddddI8', raw, place)
    s.bucket = b
  end
  if band(flags, UNSEEN) > 0 then s.unseen = parse('>I8', raw, place) end
end

local function write_subqueue(s)
  local flags = (s.number and NUMBER or 0) + (s.pinned and PINNED or 0) + (s.next and NEXT or 0) + (s.at and AT or 0)
    + (s.since and SINCE or 0) + (s.head and HEAD or 0) + (s.bucket and BUCKET or 0) + (s.unseen and UNSEEN or 0)
  local b = s.bucket
  return pack('>BI4I4I4I8I8I8I8', flags, s.number or 0, s.pinned or 0, s.running, s.next or 0, s.at or 0, s.turn,
    s.since or 0) .. (s.head or '') .. (b and pack('>ddddI8', b.n, b.per, b.burst, b.tokens, b.at) or '')
    .. (s.unseen and pack('>I8', s.unseen) or '')
end

-- What decides where a state stands in `order`: by head and by turn while it is open, by when to look at it, by since
-- when it is full.
local NOWHERE = {}
local function placed(s) return {open = is_open(s), head = s.head, at = s.at, turn = s.turn, next = s.next, since = s.since} end
local function by_head(one, name) return 'h' .. one.head .. name end
local function by_turn(one, name) return 't' .. pack('>I8I8', one.at or 0, one.turn) .. name end
local function by_next(one, name) return 'n' .. pack('>I8', one.next) .. name end
local function by_since(one, name) return 'f' .. pack('>I8', one.since) .. name end

-- A subqueue is listed in `order`, and its state is gone or cut: it is not known how many of its jobs run. No claim takes one
-- of its jobs until a cleaning has counted them (subqueues.py), and no script writes its state.
local function lost_state(q, name, raw)
  if raw then call('HDEL', q.states, name) end
  warn_once('limits:' .. q.name, fmt('queue %s: the state of limit %s is gone; its jobs wait until the next cleaning has '
    .. 'counted which of them run, and the rest of the queue goes on', q.name, printable(name)))
end

-- The states of these subqueues, by name; one that is not stored has no `raw`.
states_of = function(q, names)
  local missing = {}
  for _, name in ipairs(names) do
    if not q.known[name] then
      missing[#missing + 1] = name
      q.known[name] = {name = name, limited = byte(name) ~= 64, running = 0, turn = 0}
    end
  end
  for i = 1, #missing, 1000 do
    local raws = call('HMGET', q.states, unpack(missing, i, math.min(i + 999, #missing)))
    for j, raw in ipairs(raws) do
      local s = q.known[missing[i + j - 1]]
      if raw and is_state(raw) then
        read_subqueue(s, raw)
        s.raw = raw
        s.was = placed(s)
      elseif raw or call('ZSCORE', q.order, 's' .. s.name) then
        s.lost = true
        lost_state(q, s.name, raw)
      end
    end
  end
  return q.known
end

subqueue_state = function(q, name) return q.known[name] or states_of(q, {name})[name] end

-- A state that the script is about to change.
changing = function(q, s)
  if not s.changing and not s.lost then
    s.changing = true
    q.changed[#q.changed + 1] = s
  end
  return s
end

in_parts = function(command, key, args)
  for i = 1, #args, 2000 do call(command, key, unpack(args, i, math.min(i + 1999, #args))) end
end

-- Write the states that changed. The first write is a removal: a server without free memory accepts it.
write_states = function()
  for _, q in ipairs(queue_list) do
    local gone, come, drop, put, made = {}, {}, {}, {}, false
    for _, s in ipairs(q.changed) do
      s.changing = false
      local raw = not is_gone(s) and write_subqueue(s) or nil
      if raw ~= s.raw then
        local was, is, name = s.was or NOWHERE, NOWHERE, s.name
        if raw then
          is = placed(s)
          put[#put + 1], put[#put + 2] = s.name, raw
        else
          drop[#drop + 1] = s.name
          gone[#gone + 1] = 's' .. s.name
        end
        if not s.raw then
          made = true
          come[#come + 1], come[#come + 2] = '0', 's' .. s.name
        end
        if was.open or is.open then
          local same = was.open and is.open
          if not (same and was.head == is.head) then
            if was.open then gone[#gone + 1] = by_head(was, name) end
            if is.open then come[#come + 1], come[#come + 2] = '0', by_head(is, name) end
          end
          if not (same and was.at == is.at and was.turn == is.turn) then
            if was.open then gone[#gone + 1] = by_turn(was, name) end
            if is.open then come[#come + 1], come[#come + 2] = '0', by_turn(is, name) end
          end
        end
        if was.next ~= is.next then
          if was.next then gone[#gone + 1] = by_next(was, name) end
          if is.next then come[#come + 1], come[#come + 2] = '0', by_next(is, name) end
        end
        if was.since ~= is.since then
          if was.since then gone[#gone + 1] = by_since(was, name) end
          if is.since then come[#come + 1], come[#come + 2] = '0', by_since(is, name) end
        end
        s.raw, s.was = raw, is
      end
    end
    q.changed = {}
    if #gone == 0 and #put > 0 then gone[1] = '-' end
    in_parts('ZREM', q.order, gone)
    in_parts('HDEL', q.states, drop)
    in_parts('ZADD', q.order, come)
    in_parts('HSET', q.states, put)
    if made then call('HSETNX', QUEUES, q.name .. '/has_subqueues', '1')
    elseif #drop > 0 and call('EXISTS', q.order) == 0 then call('HDEL', QUEUES, q.name .. '/has_subqueues') end
  end
end

-- How many claims the subqueues of a queue have served. `looks` counts the claims that found new heads (below).
claims_of = function(q)
  if not q.claims then
    local row = call('HMGET', QUEUES, q.name .. '/claims', q.name .. '/looks', q.name .. '/unseen')
    q.claims, q.looks, q.unseen = tonumber(row[1] or '0'), tonumber(row[2] or '0'), row[3] and true or false
  end
  return q.claims
end

-- A claim has seen all heads.
see_heads = function(q)
  claims_of(q)
  if not q.unseen then return end
  q.looks, q.unseen = q.looks + 1, false
  call('HDEL', QUEUES, q.name .. '/unseen')
  call('HSET', QUEUES, q.name .. '/looks', int(q.looks))
end

is_fair = function(q)
  if q.fair == nil then q.fair = call('HGET', QUEUES, q.name .. '/fair') and true or false end
  return q.fair
end

-- Is this head before that one? Each is priority2 · due8 · id16.
before = function(a, b)
  local a1, a2 = parse('>I2I8', a)
  local b1, b2 = parse('>I2I8', b)
  if a1 ~= b1 then return a1 < b1 end
  if a2 ~= b2 then return a2 < b2 end
  return earlier(sub(a, 11, 26), sub(b, 11, 26))
end

local function note_since(s)
  if not is_full(s) then s.since = nil elseif not s.since then s.since = now end
end

-- To be looked at again. One that a job has left, before any claim saw it, has no place in the round yet.
touch = function(q, s, when)
  if when == 0 and s.unseen then
    claims_of(q)
    if s.unseen == q.looks and q.unseen then s.at, s.turn = nil, 0 end
    s.unseen = nil
  end
  if not s.next or s.next > when then s.next = when end
end

-- A limit as the client sends it: its number, and its rate as three numbers, each '' or behind a semicolon.
local slots = {}
local function read_slot(slot)
  local found = slots[slot]
  if not found then
    local n, r1, r2, r3 = string.match(slot, '^(%d*);?([^;]*);?([^;]*);?([^;]*)$')
    found = {tonumber(n), tonumber(r1), tonumber(r2), tonumber(r3)}
    slots[slot] = found
  end
  return found[1], found[2], found[3], found[4]
end

-- The numbers that an operator set, by limit; what cannot be read counts as none.
pins_of = function(q)
  local sound, pins = pcall(cjson.decode, call('HGET', QUEUES, q.name .. '/limits') or '{}')
  return sound and type(pins) == 'table' and pins or {}
end

-- model.subqueues.made and renumbered.
local function number_it(q, s, slot, fresh)
  if not s.limited then return end
  local number, n, per, burst = read_slot(slot)
  s.number = number
  if fresh then
    if q.pins == nil then
      q.pins = pins_of(q)
    end
    s.pinned = q.pins[string.match(s.name, '^[^/]*')] or nil
  end
  local b = s.bucket
  if not n then
    s.bucket = nil
  elseif not b then
    s.bucket = {n = n, per = per, burst = burst, tokens = burst, at = now}
  elseif b.n ~= n or b.per ~= per or b.burst ~= burst then
    s.bucket = {n = n, per = per, burst = burst, tokens = math.min(level(b), burst), at = math.max(now, b.at)}
  end
end

-- A job joins a subqueue (model.subqueues.made, renumbered and touched). If nothing else is to be looked at, the new
-- head is known without a look; until the next claim it is `unseen`.
join = function(q, name, slot, head, due, anew)
  local s = changing(q, subqueue_state(q, name))
  if s.lost then return end
  if is_gone(s) then
    s.number, s.pinned, s.bucket, s.at, s.turn, s.since, s.unseen = nil, nil, nil, nil, 0, nil, nil
    number_it(q, s, slot, true)
  elseif anew then
    number_it(q, s, slot, false)
  end
  if due <= now and not s.bucket and not (s.next and s.next <= now) and not is_first(head) then
    if not s.head or before(head, s.head) then s.head = head end
    if not s.at then
      s.at, s.turn = now, 2 * claims_of(q) + 1
      s.unseen = q.looks
      if not q.unseen then
        q.unseen = true
        call('HSET', QUEUES, q.name .. '/unseen', '1')
      end
    end
    note_since(s)
  else
    touch(q, s, math.max(due, now))
  end
end

put_into_subqueue = function(q, name, entry, slot, anew)
  local due, member = parse('>I8', entry, 3), name .. '\0' .. entry
  call('ZADD', q.entries, '0', member)
  call('ZADD', q.dues, int(due), member)
  join(q, name, slot, sub(entry, 1, 26), due, anew)
end

-- Give slots back (model.subqueues.released). Returns whether a job waits for one.
free = function(q, name, n)
  local s = subqueue_state(q, name)
  changing(q, s).running = math.max(0, s.running - n)
  if not is_full(s) then s.since = nil end
  return s.head ~= nil or s.next ~= nil
end

-- A job that keeps its slot while it waits is noted, so that operators find it.
kept = function(name, id) return 'k' .. name .. '\0' .. id end

-- The entry of a subqueue that holds a waiting job, and what is left of it without the job (nil: nothing).
found_in_subqueue = function(q, name, entry)
  local prefix = name .. '\0'
  if call('ZSCORE', q.entries, prefix .. entry) then return prefix .. entry end
  if has_state(entry) then return nil end
  local head, id = sub(entry, 1, 10), sub(entry, 11, 26)
  local behind = '(' .. prefix .. head .. id .. string.rep('\255', 17)
  for _, member in ipairs(call('ZRANGEBYLEX', q.entries, '[' .. prefix .. head, behind)) do
    local shared = sub(member, #prefix + 1)
    local gone = {[id] = true}
    local left = not has_state(shared) and without(sub(shared, 11), gone)
    if left and gone[id] == 'found' then return member, #left > 0 and prefix .. head .. left or nil end
  end
end

-- Take a waiting job out of its subqueue; returns whether it was there.
leave_subqueue = function(q, name, entry)
  local member, left = found_in_subqueue(q, name, entry)
  if not member then return false end
  call('ZREM', q.entries, member)
  call('ZREM', q.dues, member)
  if left then
    call('ZADD', q.entries, '0', left)
    call('ZADD', q.dues, int(parse('>I8', entry, 3)), left)
  end
  touch(q, changing(q, subqueue_state(q, name)), 0)
  return true
end

-- What a subqueue holds: its first due job, and when the first of the others is due (model.subqueues.Look).
look = function(q, name)
  local prefix, stop = name .. '\0', '(' .. name .. '\1'
  local size, from, first, later = #prefix, '[' .. prefix, nil, nil
  while true do
    local member = call('ZRANGEBYLEX', q.entries, from, stop, 'LIMIT', 0, 1)[1]
    if not member then return first, later end
    if not is_entry(sub(member, size + 1)) then
      take_out(q.name, q.entries, sub(member, size + 1), name, q.dues)
    else
      local priority, due = parse('>I2I8', member, size + 1)
      if due <= now then
        first = first or sub(member, size + 1, size + 26)
        from = '[' .. prefix .. pack('>I2I8', priority, now + 1)
      else
        if not later or due < later then later = due end
        from = '[' .. prefix .. pack('>I2', priority + 1)
      end
    end
  end
end

-- model.subqueues.looked
looked = function(s, first, later, turn)
  s.unseen = nil
  local b = s.bucket
  if b then
    local token = until_token(b)
    if first and token > 0 then first, later = nil, now + token
    elseif not first and not later and level(b) < b.burst then later = now + until_full(b) end
  end
  if not first then
    s.head, s.next, s.at, s.turn = nil, later, nil, 0
  else
    -- What a job has left (0) joins anew.
    if is_first(first) then s.at, s.turn = 0, 0
    elseif not s.at or s.at == 0 then s.at, s.turn = s.next and s.next > 0 and math.min(s.next, now) or now, turn end
    s.head, s.next = first, later
  end
  note_since(s)
end

-- Make the state of a subqueue anew whose state is lost: `n` of its jobs hold a slot. A rate begins without tokens.
restored = function(q, s, slot, n)
  s.lost, s.running = nil, n
  number_it(q, s, slot, true)
  if s.bucket then s.bucket.tokens = 0 end
  local first, later = look(q, s.name)
  if first or later or n > 0 then
    looked(changing(q, s), first, later, 2 * claims_of(q) + 1)
  else
    call('ZREM', q.order, 's' .. s.name)
  end
end
end
