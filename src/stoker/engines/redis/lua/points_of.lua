-- with: _events
-- The points of a few queues in a window, bucket by bucket, without passing over those of others.
-- ARGV: now, where the window begins ('[' or '(' and bytes) and ends, how many ranges to read at most, the number of
-- metrics, their names, the names of the queues in byte order.
-- Returns the points, and where to go on ('' at the end). A name has no zero byte, and no byte of all ones.
local start, stop, left, metrics = ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local wanted, found = {}, {}
for i = 6, 5 + metrics do wanted[ARGV[i]] = true end
while left > 0 do
  local first = call('ZRANGEBYLEX', POINTS, start, stop, 'LIMIT', 0, 1)[1]
  if not first then return {found, ''} end
  local bucket = sub(first, 1, 8)
  for i = 6 + metrics, #ARGV do
    local head = bucket .. ARGV[i]
    for _, point in ipairs(call('ZRANGEBYLEX', POINTS, '[' .. head .. '\0', '(' .. head .. '\1')) do
      if wanted[string.match(point, '^[^%z]+', #head + 2)] then found[#found + 1] = point end
    end
  end
  start, left = '(' .. bucket .. '\255', left - 1 - (#ARGV - 5 - metrics)
end
return {found, start}
