-- `events` holds time8 · serial8 · type1 · job16 · …, in the order of time; `trail` holds job16 · time8 · serial8 and
-- leads from a job to its events.
local EVENTS, TRAIL, POINTS, SERIAL, TICKETS, PRESENCES, LOCKS, WRITES, WRITERS = unpack(KEYS, #KEYS - 8)

-- Remove the oldest events, at most n of them; only those before a time if one is given. Returns how many.
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

-- Remove the events of one job. Returns how many.
local function cross_out(job)
  local gone = 0
  for _, entry in ipairs(call('ZRANGEBYLEX', TRAIL, '[' .. job, '(' .. job .. '\255')) do
    local head = sub(entry, 17)
    gone = gone + call('ZREMRANGEBYLEX', EVENTS, '[' .. head, '(' .. head .. '\255')
    call('ZREM', TRAIL, entry)
  end
  return gone
end
