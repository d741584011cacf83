-- Compare and set for a unit of work. From ARGV[at]: how many checks, each (kind, key number, field, value); then how
-- many writes, each (command, key number, how many arguments, arguments…). Beside the server's commands there are WAKE,
-- HOLD (token, id), LET_GO (token, id), LEAVE (waiting entry), UNEND (score, id) and GROUP (number of the key `groups`,
-- change of total, done, dead and canceled, ids that join, queue of the first). On the key `steps`: STEP (id16 · name,
-- row), NEW_STEP (the same where a check says that there is none: `steps.flush` writes it with others), DROP_STEPS (id),
-- COPY_STEPS (from id, to id, after). On the key `subqueue_entries`: JOIN (queue, subqueue, limit, '1' if it sets the
-- number, waiting entry), QUIT (queue, number of the key `wait`, subqueue, waiting entry), FREE (queue, subqueue, id). All
-- checks come before all writes.
-- Kinds: '=' a hash field has this value, '^' its value begins with this, '-' a hash field is absent, 'w' a waiting entry exists, 'l' the same in a
-- subqueue, given as queue · '/' · subqueue · '\0' · entry, or in the waiting set, whose key has the number that is the
-- value, 'm' no job has this id.
local function checked(at)
  local n = tonumber(ARGV[at])
  at = at + 1
  for _ = 1, n do
    local kind, key, field = ARGV[at], KEYS[tonumber(ARGV[at + 1])], ARGV[at + 2]
    local sound
    if kind == '=' then sound = call('HGET', key, field) == ARGV[at + 3]
    elseif kind == '-' then sound = not call('HGET', key, field)
    elseif kind == '^' then sound = sub(call('HGET', key, field) or '', 1, #ARGV[at + 3]) == ARGV[at + 3]
    elseif kind == 'w' then sound = is_waiting(key, field)
    elseif kind == 'l' then
      local queue, subqueue, entry = string.match(field, '^([^/]*)/([^%z]*)%z(.*)$')
      sound = found_in_subqueue(subqueues_of(queue, tonumber(ARGV[at + 1])), subqueue, entry)
        or is_waiting(KEYS[tonumber(ARGV[at + 3])], entry)
    else sound = not body_of(field) end
    if not sound then return false end
    at = at + 4
  end
  return true
end

local function after_checks(at) return at + 1 + 4 * tonumber(ARGV[at]) end

-- Remove from lease sets first and together, because the first write must be a removal, and add to them last: a running
-- job that is changed is removed and added, and so may be many jobs of one entry.
local function released(at)
  local leaving, seen = {}, {}
  for _ = 1, tonumber(ARGV[at]) do
    local size = tonumber(ARGV[at + 3])
    if ARGV[at + 1] == 'LET_GO' and not seen[ARGV[at + 4] .. ARGV[at + 5]] then
      seen[ARGV[at + 4] .. ARGV[at + 5]] = true
      local name = ARGV[at + 2] .. ':' .. ARGV[at + 4]
      local one = leaving[name] or {key = KEYS[tonumber(ARGV[at + 2])], token8 = ARGV[at + 4], ids = {}}
      leaving[name], one.ids[#one.ids + 1] = one, ARGV[at + 5]
    end
    at = at + 3 + size
  end
  for _, one in pairs(leaving) do let_go(one.key, one.token8, one.ids) end
end

-- Returns where the next argument is.
local function written(at)
  local n, going, held = tonumber(ARGV[at]), {}, {}
  released(at)
  at = at + 1
  for _ = 1, n do
    local command, key, size = ARGV[at], KEYS[tonumber(ARGV[at + 1])], tonumber(ARGV[at + 2])
    at = at + 3
    if command == 'WAKE' then
      if call('LLEN', key) == 0 then call('RPUSH', key, '1') end
    elseif command == 'GROUP' then
      local agenda = KEYS[tonumber(ARGV[at])]
      if ARGV[at + 5] ~= '' then join_group(key, agenda, ARGV[at + 5], ARGV[at + 6]) end
      count_group(key, agenda, ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4])
    elseif command == 'STEP' then
      steps.put(ARGV[at], ARGV[at + 1])
    elseif command == 'NEW_STEP' then
      steps.add(ARGV[at], ARGV[at + 1])
    elseif command == 'DROP_STEPS' then
      steps.drop(ARGV[at])
    elseif command == 'COPY_STEPS' then
      steps.copy(ARGV[at], ARGV[at + 1], ARGV[at + 2])
    elseif command == 'LEAVE' then
      leave_waiting(key, ARGV[at])
    elseif command == 'JOIN' then
      local q = subqueues_of(ARGV[at], tonumber(ARGV[at - 2]))
      put_into_subqueue(q, ARGV[at + 1], ARGV[at + 4], ARGV[at + 2], ARGV[at + 3] == '1')
    elseif command == 'QUIT' then
      local q = subqueues_of(ARGV[at], tonumber(ARGV[at - 2]))
      if not leave_subqueue(q, ARGV[at + 2], ARGV[at + 3]) then leave_waiting(KEYS[tonumber(ARGV[at + 1])], ARGV[at + 3]) end
    elseif command == 'FREE' then
      local q = subqueues_of(ARGV[at], tonumber(ARGV[at - 2]))
      free(q, ARGV[at + 1], 1)
      call('ZREM', q.order, kept(ARGV[at + 1], ARGV[at + 2]))
    elseif command == 'HOLD' then
      local one = held[key .. ARGV[at]] or {key = key, token8 = ARGV[at], ids = {}, seen = {}}
      held[key .. ARGV[at]] = one
      if not one.seen[ARGV[at + 1]] then one.seen[ARGV[at + 1]], one.ids[#one.ids + 1] = true, ARGV[at + 1] end
    elseif command == 'UNEND' then
      -- Many jobs of an entry may be removed: all at once, before any is added.
      going[ARGV[at]] = going[ARGV[at]] or {}
      going[ARGV[at]][ARGV[at + 1]] = true
    elseif command ~= 'LET_GO' then
      if key == ENDS then unend(going); going = {} end
      call(command, key, unpack(ARGV, at, at + size - 1))
    end
    at = at + size
  end
  unend(going)
  for _, one in pairs(held) do hold(one.key, one.token8, table.concat(one.ids)) end
  return at
end

local function after_writes(at)
  local n = tonumber(ARGV[at])
  at = at + 1
  for _ = 1, n do at = at + 3 + tonumber(ARGV[at + 2]) end
  return at
end
