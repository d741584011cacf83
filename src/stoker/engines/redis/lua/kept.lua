-- When those of some jobs expire that are stored here. ARGV: now, ids. Returns one entry for each: '' if it has not ended
-- or if its state cannot be read.
local found = {}
for i = 2, #ARGV do
  local state = call('HGET', STATE, ARGV[i])
  local r = state and read_state(state)
  if r and r.status ~= 'p' and r.status ~= 'r' and r.status ~= 'a' and #r.tail >= 16 then
    found[#found + 1] = int(parse('>I8', r.tail, 9))
  elseif state or body_of(ARGV[i]) then
    found[#found + 1] = ''
  end
end
return found
