-- with: _steps
-- Answer a wait on which a job is suspended until any of its waits is answered, and make that job due: shared.steps.
-- answer_alone and Record.run_now. ARGV: now, id, name, value, '1' if workers are woken here, and the open row if the
-- client has judged the value by it.
-- Returns {now, 1, queue} when it was done; {now, row} when the row has a schema that the value is to be judged by;
-- {now, 0} in every other case, which the client decides: nothing was written.
local id, name, value = ARGV[2], ARGV[3], ARGV[4]
local state, row, body = call('HGET', STATE, id), call('HGET', steps.rows, id .. name), body_of(id)
local r = state and read_state(state)
local _, queue = names_of(body or '')
if not r or not queue or not row or call('HEXISTS', CORRUPT, id) == 1 then return {int(now), 0} end
if r.status ~= 'p' or r.settled ~= 's' or r.scheduled_at <= now then return {int(now), 0} end
if sub(row, 1, 9) ~= '2' .. pack('>I8', r.token) then return {int(now), 0} end
local wait, wake = sub(STATE, 1, -6) .. 'wait:' .. queue, sub(STATE, 1, -6) .. 'wake:' .. queue
local suspended = sub(STATE, 1, -6) .. 'suspended:' .. queue
local entry = waiting_entry(r.priority, r.scheduled_at, id)
-- Where a queue is fair, or the job has a limit, it stands in a subqueue or may have to.
if call('HGET', QUEUES, queue .. '/fair') or not call('ZSCORE', wait, entry) then return {int(now), 0} end
if row ~= ARGV[6] and string.find(row, '"schema":', $STEP_SIZE$ + 1, true) then return {int(now), row} end
call('ZREM', wait, entry)
r.scheduled_at, r.version = now, r.version + 1
call('ZADD', wait, '0', waiting_entry(r.priority, now, id))
call('ZADD', suspended, int(now), id)
call('HSET', STATE, id, write_state(r))
steps.put(id .. name, '0' .. sub(row, 2, 9) .. now8 .. sub(row, 18, $STEP_SIZE$) .. '=' .. value)
if ARGV[5] == '1' and call('LLEN', wake) == 0 then call('RPUSH', wake, '1') end
tick()
return {counted_now(), 1, queue}
