-- with: _packed_ids
-- Renew a worker's lease and compare its claims. KEYS[19]: its lease set; KEYS[20]: lengths of leases; KEYS[21]: orders to workers. ARGV[2..5]:
-- worker, lease, '1' for a first renewal, age of an orphan; ARGV[6..7]: between which tokens (bounds in byte order) the
-- worker names all its claims; then these claims, each (id, fence).
-- Returns {now, known, lost, canceling, orphaned, orders}: numbers of the claims named, and orphans as {body, state, last
-- error, notes, curve, cool-down count}.
local worker, lease, first, age = ARGV[2], tonumber(ARGV[3]), ARGV[4] == '1', tonumber(ARGV[5])
if not call('ZSCORE', WORKERS, worker) and (not first or call('ZSCORE', RETIRED, worker)) then
  return {int(now), 0, {}, {}, {}, ''}
end
-- The first write is a removal: a server without free memory accepts it, and with it the renewal.
call('ZREM', WORKERS, worker)
-- A lease lapses strictly after its end, and at once when the worker releases it.
call('ZADD', WORKERS, int(lease > 0 and now + lease or now - 1), worker)
call('HSET', KEYS[20], worker, int(lease))
tick()
local lost, canceling, mine = {}, {}, {}
for i = 8, #ARGV, 2 do
  local id, fence = ARGV[i], ARGV[i + 1]
  local state = call('HGET', STATE, id)
  if not state or sub(state, 1, #fence) ~= fence then
    lost[#lost + 1] = (i - 8) / 2
  else
    mine[id] = true
    if sub(state, #fence + 1, #fence + 1) == '1' then canceling[#canceling + 1] = (i - 8) / 2 end
  end
end
local orphaned = {}
for _, id in ipairs(held_by(KEYS[19], ARGV[6], ARGV[7])) do
  local state = not mine[id] and call('HGET', STATE, id)
  local r = state and read_state(state)
  if r and r.worker == worker and now - r.started_at > age then
    local body = body_of(id)
    local _, queue = names_of(body or '')
    if queue then
      orphaned[#orphaned + 1] = {body, state, call('HGET', LAST, id), call('HGET', NOTES, id),
        call('HGET', QUEUES, queue .. '/curve'), call('HGET', QUEUES, queue .. '/count')}
    end
  end
end
return {int(now), 1, lost, canceling, orphaned, call('HGET', KEYS[21], worker) or ''}
