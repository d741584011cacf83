-- with: _places
-- Jobs of which body or state cannot be read, or that are nowhere. ARGV: now, the number of the first body in the order of
-- ids (negative: from the end), and of the last. Returns ids.
local found = {}
for _, body in ipairs(call('ZRANGE', JOBS, ARGV[2], ARGV[3])) do
  local id = sub(body, 1, 16)
  local state = call('HGET', STATE, id)
  local sound = #id == 16 and names_of(body)
  if sound and state then sound = read_state(state) elseif sound then sound = waits(id, body) end
  if not sound then found[#found + 1] = id end
end
return found
