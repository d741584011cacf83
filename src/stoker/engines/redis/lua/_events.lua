-- Events stand in `events` as time8 · serial8 · type · job16 · …, in the order they happened, and in `trail` as
-- job16 · time8 · serial8, so that those of one job are found.
local EVENTS, TRAIL, POINTS, SERIAL, TICKETS, PRESENCES, LOCKS, SIGNS, SIGNED = unpack(KEYS, #KEYS - 8)

-- Remove the oldest events, at most n of them; only those before a time if one is given. Answers how many went.
local function drop_events(n, before8)
  local gone = call('ZRANGEBYLEX', EVENTS, '-', before8 and '(' .. before8 or '+', 'LIMIT', 0, n)
  for _, event in ipairs(gone) do
    call('ZREM', TRAIL, sub(event, 18, 33) .. sub(event, 1, 16))
  end
  if #gone > 0 then
    call('ZREMRANGEBYRANK', EVENTS, 0, #gone - 1)
  end
  return #gone
end

-- Remove the events of one job. Answers how many went.
local function cross_out(job)
  local gone = 0
  for _, entry in ipairs(call('ZRANGEBYLEX', TRAIL, '[' .. job, '(' .. job .. '\255')) do
    local place = sub(entry, 17)
    gone = gone + call('ZREMRANGEBYLEX', EVENTS, '[' .. place, '(' .. place .. '\255')
    call('ZREM', TRAIL, entry)
  end
  return gone
end
