-- with: _places
-- Jobs by id. ARGV: now, '1' for all details, ids. Returns {now, jobs}; a job is {body, state, last error, why it was
-- set aside}, with details {…, notes, result, ring of errors}; '' for one that is not stored. The state is '' where a job
-- has none and does not wait: it was lost.
local details, out = ARGV[2] == '1', {}
local some_aside = call('HLEN', CORRUPT) > 0
for i = 3, #ARGV do
  local id = ARGV[i]
  local body = body_of(id)
  if body then
    local state = call('HGET', STATE, id)
    if not state and names_of(body) and not waits(id, body) then state = '' end
    local found = {body, state, state and call('HGET', LAST, id), some_aside and call('HGET', CORRUPT, id)}
    if details and state then
      found[5], found[6] = call('HGET', NOTES, id), call('HGET', RESULTS, id)
      local r, ring = read_state(state), {}
      for k = 0, r and math.min(r.errors, 32) - 1 or -1 do ring[k + 1] = call('HGET', ERRORS, id .. string.char(k)) end
      found[7] = ring
    end
    out[i - 2] = found
  else
    out[i - 2] = ''
  end
end
return {int(now), out}
