-- Compare and set. From ARGV[at]: how many checks, each (kind, key number, field, value); then how many writes, each
-- (command, key number, how many arguments, arguments…); besides the server's commands there are WAKE, HOLD (token, id),
-- LET_GO (token, id), LEAVE (place) and UNEND (score, id). Checks first, writes after: nothing is ever half done.
-- Kinds: '=' hash field has this value, '-' hash field is absent, 'w' stands at this place in the line, 'm' no such job.
local function checked(at)
  local n = tonumber(ARGV[at])
  at = at + 1
  for _ = 1, n do
    local kind, key, field = ARGV[at], KEYS[tonumber(ARGV[at + 1])], ARGV[at + 2]
    local sound
    if kind == '=' then sound = call('HGET', key, field) == ARGV[at + 3]
    elseif kind == '-' then sound = not call('HGET', key, field)
    elseif kind == 'w' then sound = stands_in_line(key, field)
    else sound = not body_of(field) end
    if not sound then return false end
    at = at + 4
  end
  return true
end

local function after_checks(at) return at + 1 + 4 * tonumber(ARGV[at]) end

-- All that is let go of leaves first and together, as removals must come first, and what is held comes in last: a job that
-- is changed while it runs does both, and many of one lot may.
local function released(at)
  local lots, seen = {}, {}
  for _ = 1, tonumber(ARGV[at]) do
    local size = tonumber(ARGV[at + 3])
    if ARGV[at + 1] == 'LET_GO' and not seen[ARGV[at + 4] .. ARGV[at + 5]] then
      seen[ARGV[at + 4] .. ARGV[at + 5]] = true
      local place = ARGV[at + 2] .. ':' .. ARGV[at + 4]
      local lot = lots[place] or {key = KEYS[tonumber(ARGV[at + 2])], token8 = ARGV[at + 4], ids = {}}
      lots[place], lot.ids[#lot.ids + 1] = lot, ARGV[at + 5]
    end
    at = at + 3 + size
  end
  for _, lot in pairs(lots) do let_go(lot.key, lot.token8, lot.ids) end
end

-- Answers where the next argument is.
local function written(at)
  local n, going, held = tonumber(ARGV[at]), {}, {}
  released(at)
  at = at + 1
  for _ = 1, n do
    local command, key, size = ARGV[at], KEYS[tonumber(ARGV[at + 1])], tonumber(ARGV[at + 2])
    at = at + 3
    if command == 'WAKE' then
      if call('LLEN', key) == 0 then call('RPUSH', key, '1') end
    elseif command == 'LEAVE' then
      leave_line(key, ARGV[at])
    elseif command == 'HOLD' then
      local lot = held[key .. ARGV[at]] or {key = key, token8 = ARGV[at], ids = {}, seen = {}}
      held[key .. ARGV[at]] = lot
      if not lot.seen[ARGV[at + 1]] then lot.seen[ARGV[at + 1]], lot.ids[#lot.ids + 1] = true, ARGV[at + 1] end
    elseif command == 'UNEND' then
      -- Many of a lot may go: they leave it together, before anybody comes in.
      going[ARGV[at]] = going[ARGV[at]] or {}
      going[ARGV[at]][ARGV[at + 1]] = true
    elseif command ~= 'LET_GO' then
      if key == ENDS then unend(going); going = {} end
      call(command, key, unpack(ARGV, at, at + size - 1))
    end
    at = at + size
  end
  unend(going)
  for _, lot in pairs(held) do hold(lot.key, lot.token8, table.concat(lot.ids)) end
  return at
end

local function after_writes(at)
  local n = tonumber(ARGV[at])
  at = at + 1
  for _ = 1, n do at = at + 3 + tonumber(ARGV[at + 2]) end
  return at
end
