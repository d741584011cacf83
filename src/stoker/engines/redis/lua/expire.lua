-- with: _packed_ids, _events, _steps
-- Remove finished jobs and all that belongs to them. ARGV: now, how many at most, and their ids; without ids, those
-- that have expired. Returns the removed ids.
local limit, gone = tonumber(ARGV[2]), {}

local function drop_key(body, kind, queue, id)
  local at = 37 + #kind + #queue
  if byte(body, at + 4) % 2 == 1 then
    local size = parse('>I2', body, at + 5)
    -- Behind the key there may be a zero byte and for how long a success keeps it.
    call('ZREM', NAMED, string.match(sub(body, at + 7, at + 6 + size), '^[^%z]*') .. '\0' .. id)
  end
end

-- It has left ENDS.
local function remove(id, r)
  gone[#gone + 1] = id
  local body = body_of(id)
  local kind, queue = names_of(body or '')
  if r then
    call('ZREM', UNSUCCESSFUL, r.status .. id)
    for k = 0, math.min(r.errors, 32) - 1 do call('HDEL', ERRORS, id .. string.char(k)) end
  end
  if kind then
    drop_key(body, kind, queue, id)
    if r then count(queue .. '/' .. kind .. '/' .. r.status, -1) end
  end
  if body then call('ZREM', JOBS, body) end
  steps.drop(id)
  cross_out(id)
end

local function state_of(id)
  local state = call('HGET', STATE, id)
  return state and read_state(state)
end

if #ARGV > 2 then
  local going, found = {}, {}
  for i = 3, #ARGV do
    local r = state_of(ARGV[i])
    if r and #r.tail >= 16 then
      local expires = int(parse('>I8', r.tail, 9))
      going[expires] = going[expires] or {}
      going[expires][ARGV[i]] = true
      found[#found + 1] = {id = ARGV[i], r = r, gone = going[expires]}
    end
  end
  unend(going)
  -- A job that is in ENDS no more was requeued meanwhile: it stays.
  for _, one in ipairs(found) do
    if one.gone[one.id] == 'found' then remove(one.id, one.r) end
  end
else
  for _, packed in ipairs(call('ZRANGEBYSCORE', ENDS, '-inf', '(' .. int(now), 'LIMIT', 0, limit)) do
    local room = 16 * (limit - #gone)
    if room == 0 then break end
    local expires = call('ZSCORE', ENDS, packed)
    call('ZREM', ENDS, packed)
    if #packed > room then call('ZADD', ENDS, expires, sub(packed, room + 1)) end
    for _, id in ipairs(members(sub(packed, 1, room))) do remove(id, state_of(id)) end
  end
end
if #gone > 0 then
  for _, hash in ipairs({STATE, LAST, NOTES, RESULTS, CORRUPT}) do call('HDEL', hash, unpack(gone)) end
  write_counts()
  tick()
end
return gone
