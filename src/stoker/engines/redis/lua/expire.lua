-- with: _events
-- Remove finished jobs and all that belongs to them. ARGV: now, how many at most, and their ids; without ids, those
-- whose time is over. Answers {ids of those that went, how many events went with them}.
local ids = {unpack(ARGV, 3)}
if #ids == 0 then ids = call('ZRANGEBYSCORE', ENDS, '-inf', '(' .. int(now), 'LIMIT', 0, ARGV[2]) end
local gone, events = {}, 0
-- Of workers that were reaped long ago nobody needs the names: one that is not known is as good as reaped.
call('ZREMRANGEBYRANK', RETIRED, 0, -1001)
-- Counts of engines that left without a farewell, after a day.
local signed = call('HGETALL', SIGNED)
for i = 1, #signed, 2 do
  if parse('>I8', signed[i + 1]) < now - 86400000000 then
    call('HDEL', SIGNED, signed[i])
    call('HDEL', SIGNS, signed[i])
  end
end

local function drop_key(body, kind, queue, id)
  local at = 37 + #kind + #queue
  if byte(body, at + 4) % 2 == 1 then
    local size = parse('>I2', body, at + 5)
    call('ZREM', NAMED, sub(body, at + 7, at + 6 + size) .. '\0' .. id)
  end
end

for _, id in ipairs(ids) do
  -- Whoever stands here is finished: a job that was requeued meanwhile is left alone.
  if call('ZREM', ENDS, id) == 1 then
    gone[#gone + 1] = id
    local body, state = body_of(id), call('HGET', STATE, id)
    local r = state and read_state(state)
    local kind, queue = names_of(body or '')
    if r then
      call('ZREM', ODD, r.status .. id)
      for k = 0, math.min(r.errors, 32) - 1 do call('HDEL', ERRORS, id .. string.char(k)) end
    end
    if kind then
      drop_key(body, kind, queue, id)
      if r then count(queue .. '/' .. kind .. '/' .. r.status, -1) end
    end
    if body then call('ZREM', JOBS, body) end
    events = events + cross_out(id)
  end
end
if #gone > 0 then
  for _, hash in ipairs({STATE, LAST, NOTES, RESULTS, CORRUPT}) do call('HDEL', hash, unpack(gone)) end
  write_counts()
  tick()
end
return {gone, events}
