-- with: _steps
-- All rows of jobs. ARGV: now, what comes behind an id before the first name that is wanted, how many rows at most, ids.
-- Returns {names, rows}: id16 · name of every row, and the rows of the first of them; nil where one is missing.
local names = {}
for i = 4, #ARGV do
  for _, member in ipairs(call('ZRANGEBYLEX', steps.names, '[' .. ARGV[i] .. ARGV[2], '(' .. ARGV[i] .. '\2')) do
    names[#names + 1] = ARGV[i] .. sub(member, 18)
  end
end
local most = math.min(#names, tonumber(ARGV[3]))
return {names, most > 0 and call('HMGET', steps.rows, unpack(names, 1, most)) or {}}
