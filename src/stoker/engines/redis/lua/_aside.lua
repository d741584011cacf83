-- End a job that cannot be read. It becomes a dead job that operators can see and remove: its error says why, and its
-- payload is the bytes that cannot be read. The caller has taken it out of its waiting set or lease set before.
local function set_aside(id, queue, kind, body, state)
  local why = not body and 'there is no body' or not kind and 'the body cannot be read' or 'the state cannot be read'
  if not kind or state then
    local label = pack('>I2', $OFFSET$) .. string.char(#(kind or '')) .. (kind or '') .. string.char(#queue) .. queue
    call('ZREMRANGEBYLEX', JOBS, '[' .. id, '(' .. id .. '\1')
    call('ZADD', JOBS, '0', id .. now8 .. now8 .. label .. pack('>I4', 1) .. '\0' .. (body or '') .. (state or ''))
  end
  local expires = now + (tonumber(call('HGET', QUEUES, queue .. '/keep_dead') or nil) or $KEEP_DEAD$)
  call('HSET', STATE, id, write_state({status = 'x', token = 0, worker = '', cancel_requested = '0', attempts = 0, base = 0,
    crashes = 0, throttles = 0, errors = 0, version = 1, started_at = 0, settled = '-', scheduled_at = now, priority = $OFFSET$,
    tail = now8 .. pack('>I8', expires)}))
  call('HSET', LAST, id, 'corrupt record: ' .. why)
  call('HSET', CORRUPT, id, why)
  call('ZADD', ENDS, int(expires), id)
  kept_for(expires)
  call('ZREM', UNSUCCESSFUL, 'a' .. id)
  call('ZADD', UNSUCCESSFUL, '0', 'x' .. id)
  -- Its group counts it as dead, if the body still names it (model.job.salvaged).
  local group = body and string.match(body, '"group":"([A-Za-z0-9+/]+==)"')
  if group then
    local prefix = sub(STATE, 1, -6)
    count_group(prefix .. 'group:' .. group, prefix .. 'groups', 0, 0, 1, 0)
  end
  count(queue .. '/' .. (kind or '') .. '/x', 1)
  call('HINCRBY', TOTALS, (kind or '') .. '/failed', 1)
end
