-- Waiting and running jobs in the order of their ids. ARGV: now, the last id that was read or '', how many bodies to read.
-- Returns {the last id, '' at the end; ids}.
local found, last = {}, ''
local bodies = call('ZRANGEBYLEX', JOBS, ARGV[2] == '' and '-' or '(' .. ARGV[2] .. '\1', '+', 'LIMIT', 0, ARGV[3])
for _, body in ipairs(bodies) do
  last = sub(body, 1, 16)
  local state = call('HGET', STATE, last)
  local status = state and sub(state, 1, 1) or 'p'
  if status == 'p' or status == 'a' or status == 'r' then found[#found + 1] = last end
end
return {#bodies == tonumber(ARGV[3]) and last or '', found}
