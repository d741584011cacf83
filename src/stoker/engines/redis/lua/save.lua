-- with: _steps
-- Store finished steps of running jobs. ARGV: now, how many saves, each (id, fence, how many rows); then the rows, each
-- (id16 · name, until8 and value). Returns {now, verdicts}: a(pplied) or l(ost).
local n, ids, verdicts = tonumber(ARGV[2]), {}, {}
for i = 1, n do ids[i] = ARGV[3 * i] end
local states = call('HMGET', STATE, unpack(ids))
local at, names, rows = 3 + 3 * n, {}, {}
for i = 1, n do
  local fence = ARGV[3 * i + 1]
  local mine = states[i] and sub(states[i], 1, #fence) == fence
  verdicts[i] = mine and 'a' or 'l'
  local head = '0' .. sub(fence, 2, 9) .. now8
  for _ = 1, tonumber(ARGV[3 * i + 2]) do
    if mine then
      names[#names + 1] = ARGV[at]
      rows[#rows + 1], rows[#rows + 2] = ARGV[at], head .. ARGV[at + 1]
    end
    at = at + 2
  end
end
if #names == 0 then return {int(now), table.concat(verdicts)} end
for first = 1, #names, 1000 do
  local last = math.min(first + 999, #names)
  local finished, opened = {}, {}
  for i = first, last do
    local id, name = sub(names[i], 1, 16), sub(names[i], 17)
    finished[#finished + 1], finished[#finished + 2] = '0', id .. '\0' .. name
    opened[#opened + 1] = id .. '\1' .. name
  end
  local new = call('HSET', steps.rows, unpack(rows, 2 * first - 1, 2 * last))
  call('ZADD', steps.names, unpack(finished))
  if new < #opened then
    call('ZREM', steps.names, unpack(opened))
    call('ZREM', steps.asking, unpack(names, first, last))
  end
end
tick()
return {counted_now(), table.concat(verdicts)}
