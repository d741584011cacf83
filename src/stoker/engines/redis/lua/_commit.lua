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

-- Answers where the next argument is.
local function written(at)
  local n, going = tonumber(ARGV[at]), {}
  at = at + 1
  for _ = 1, n do
    local command, key, size = ARGV[at], KEYS[tonumber(ARGV[at + 1])], tonumber(ARGV[at + 2])
    at = at + 3
    if command == 'WAKE' then
      if call('LLEN', key) == 0 then call('RPUSH', key, '1') end
    elseif command == 'LEAVE' then
      leave_line(key, ARGV[at])
    elseif command == 'HOLD' then
      hold(key, ARGV[at], ARGV[at + 1])
    elseif command == 'LET_GO' then
      let_go(key, ARGV[at], {ARGV[at + 1]})
    elseif command == 'UNEND' then
      -- Many of a lot may go: they leave it together, before anybody comes in.
      going[ARGV[at]] = going[ARGV[at]] or {}
      going[ARGV[at]][ARGV[at + 1]] = true
    else
      if key == ENDS then unend(going); going = {} end
      call(command, key, unpack(ARGV, at, at + size - 1))
    end
    at = at + size
  end
  unend(going)
  return at
end

local function after_writes(at)
  local n = tonumber(ARGV[at])
  at = at + 1
  for _ = 1, n do at = at + 3 + tonumber(ARGV[at + 2]) end
  return at
end
