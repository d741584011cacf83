-- with: _steps
-- Rows of jobs by their whole names. ARGV: now, then each id16 · name. Returns {now, rows}; nil where there is none.
local rows = {}
for first = 2, #ARGV, 1000 do
  for _, row in ipairs(call('HMGET', steps.rows, unpack(ARGV, first, math.min(first + 999, #ARGV)))) do
    rows[#rows + 1] = row
  end
end
return {int(now), rows}
