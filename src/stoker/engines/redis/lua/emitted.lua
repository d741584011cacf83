-- with: _steps
-- Pages of emitted values whose last number (their `until`) is larger. ARGV: now, that number as 8 bytes, then each id16 ·
-- name. Returns {now, rows}; '' where there is none.
local rows = call('HMGET', steps.rows, unpack(ARGV, 3))
for i = 1, #rows do
  if not rows[i] or sub(rows[i], 18, 25) <= ARGV[2] then rows[i] = '' end
end
return {int(now), rows}
