-- with: _lots, _line, _aside
-- KEYS[18…]: what the one who takes over holds, and each of the owners. ARGV[2..4]: who takes over, how many, how many of
-- the owners are known to be dead; then the owners, those first. The others must have lapsed.
-- Answers {now, claims}; a claim is {body, state, last error, notes, curve, cool-down count}.
local by, limit = ARGV[2], tonumber(ARGV[3])
-- Nobody takes over when a worker is only to be made unknown.
if by ~= '' and tonumber(call('ZSCORE', WORKERS, by) or '-1') < now then return {int(now), {}} end
local dead, named, found = tonumber(ARGV[4]), {}, {}
for i = 5, #ARGV do
  local owner, key = ARGV[i], KEYS[14 + i]
  local gone = i < 5 + dead or tonumber(call('ZSCORE', WORKERS, owner) or '+inf') < now
  if gone and owner ~= by and not named[owner] then
    named[owner] = 0
    local ids, tokens = held_by(key)
    for k, id in ipairs(ids) do
      local state = call('HGET', STATE, id)
      local r = state and read_state(state)
      local body = body_of(id)
      local kind, queue = names_of(body or '')
      if r and kind and r.status == 'r' and r.worker == owner then
        named[owner] = named[owner] + 1
        found[#found + 1] = {id = id, r = r, body = body, queue = queue, key = key, token8 = tokens[k]}
      else
        let_go(key, tokens[k], {id})
        -- One that is not this worker's any more is none of our business; one that cannot be read holds nobody up.
        if not r or (r.status == 'r' and r.worker == owner) then
          count((queue or '') .. '/' .. (kind or '') .. '/r', -1)
          set_aside(id, queue or '', kind, body, state)
        end
      end
    end
  end
end
local function older(a, b)
  if a.r.started ~= b.r.started then return a.r.started < b.r.started end
  return earlier(a.id, b.id)
end
table.sort(found, older)
local claims, released = {}, {}
for i = 1, math.min(limit, #found) do
  local one = found[i]
  local place = one.key .. one.token8
  local gone = released[place] or {key = one.key, token8 = one.token8, ids = {}}
  released[place] = gone
  gone.ids[#gone.ids + 1] = one.id
end
for _, gone in pairs(released) do let_go(gone.key, gone.token8, gone.ids) end
for i = 1, math.min(limit, #found) do
  local one = found[i]
  local r, id = one.r, one.id
  named[r.worker] = named[r.worker] - 1
  r.tail = pack('>I8', r.started) .. r.worker
  r.worker, r.token, r.started = by, math.max(now, r.token + 1), now
  local state = write_state(r)
  hold(KEYS[18], pack('>I8', r.token), id)
  call('HSET', STATE, id, state)
  claims[i] = {one.body, state, call('HGET', LAST, id), call('HGET', NOTES, id),
    call('HGET', QUEUES, one.queue .. '/curve'), call('HGET', QUEUES, one.queue .. '/count')}
end
for owner, left in pairs(named) do
  if left == 0 then
    call('ZREM', WORKERS, owner)
    call('ZADD', RETIRED, int(now), owner)
  end
end
write_counts()
if #claims > 0 then tick() end
return {int(now), claims}
