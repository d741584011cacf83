-- with: _events
-- Append blocks of events and overwrite points; beyond a bound the oldest are removed.
-- ARGV: now, the chunk's id, most events, most points, for how long and how many tickets are kept, number of blocks, (how
-- many events, first8, rest of the head, body) of each block, (name, value) of each point. Returns 0 if the chunk was
-- written before: it is sent again because its reply was lost, and recognised by its ticket.
if call('ZADD', TICKETS, 'NX', int(now), ARGV[2]) == 0 then return 0 end
local most, most_points, kept, count = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[7])
call('ZREMRANGEBYSCORE', TICKETS, '-inf', '(' .. int(now - kept))
call('ZREMRANGEBYRANK', TICKETS, 0, -tonumber(ARGV[6]) - 1)
for i = 8, 7 + 4 * count, 4 do
  local serial = call('INCRBY', SERIAL, ARGV[i])
  local head = ARGV[i + 1] .. pack('>I8', serial) .. ARGV[i + 2]
  call('ZADD', BLOCKS, 0, head)
  call('ZADD', BODIES, int(serial), head .. ARGV[i + 3])
end
for i = 8 + 4 * count, #ARGV, 2 do
  -- A name ends in a zero byte: all points of the name lie before the same name with a one there.
  local name = ARGV[i]
  call('ZREMRANGEBYLEX', POINTS, '[' .. name, '(' .. sub(name, 1, -2) .. '\1')
  call('ZADD', POINTS, 0, name .. ARGV[i + 1])
end
if count > 0 then
  drop_first(most)
  drop_removals(kept)
end
local surplus = call('ZCARD', POINTS) - most_points
if surplus > 0 then
  call('ZREMRANGEBYRANK', POINTS, 0, surplus - 1 + math.floor(most_points / 10))
end
tick()
return 1
