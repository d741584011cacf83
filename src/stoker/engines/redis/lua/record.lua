-- with: _events
-- Append events, shifted to the store's clock, and overwrite points; beyond a bound the oldest are removed.
-- ARGV: now, the chunk's id, the recorder's now, most events, most points, for how long and how many tickets are kept,
-- number of events, (time, rest) of each event, (name, value) of each point. Returns how many events were written.
-- A chunk that is sent again, because its reply was lost, is recognised by its ticket. A deleted job has a ticket too:
-- events from before its deletion are left out.
if call('ZADD', TICKETS, 'NX', int(now), ARGV[2]) == 0 then return 0 end
call('ZREMRANGEBYSCORE', TICKETS, '-inf', '(' .. int(now - tonumber(ARGV[6])))
call('ZREMRANGEBYRANK', TICKETS, 0, -tonumber(ARGV[7]) - 1)
local shift, most, most_points, count = now - tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[8])
local written = 0
local serial = count > 0 and call('INCRBY', SERIAL, count) - count or 0
for i = 1, count do
  local at, rest = math.max(tonumber(ARGV[7 + 2 * i]) + shift, 0), ARGV[8 + 2 * i]
  if at > tonumber(call('ZSCORE', TICKETS, sub(rest, 2, 17)) or '-1') then
    local head = pack('>I8I8', at, serial + i)
    call('ZADD', EVENTS, 0, head .. rest)
    call('ZADD', TRAIL, 0, sub(rest, 2, 17) .. head)
    written = written + 1
  end
end
for i = 9 + 2 * count, #ARGV, 2 do
  -- A name ends in a zero byte: all points of the name lie before the same name with a one there.
  local name = ARGV[i]
  call('ZREMRANGEBYLEX', POINTS, '[' .. name, '(' .. sub(name, 1, -2) .. '\1')
  call('ZADD', POINTS, 0, name .. ARGV[i + 1])
end
local surplus = call('ZCARD', EVENTS) - most
if surplus > 0 then
  -- Remove a tenth more than needed, so that not every call has to remove some.
  drop_events(surplus + math.floor(most / 10))
end
surplus = call('ZCARD', POINTS) - most_points
if surplus > 0 then
  call('ZREMRANGEBYRANK', POINTS, 0, surplus - 1 + math.floor(most_points / 10))
end
tick()
return written
