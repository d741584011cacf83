-- Remove counters of waiting jobs of queues in which none waits: what lost bodies left behind. ARGV: now, the names of the
-- queues whose keys are given, in their order. Returns counters that were removed and were above zero, each (field, n).
local given, out = {}, {}
for i = 2, #ARGV do given[ARGV[i]] = i - 1 end
local counts = call('HGETALL', COUNTS)
for i = 1, #counts, 2 do
  local name, char = string.match(counts[i], '^([^/]*)/[^/]*/(.)$')
  local at = given[name]
  if at and (char == 'p' or char == 'a') and counts[i + 1] ~= '0' then
    local waiting = redis.pcall('ZCARD', WAIT(at))
    if waiting == 0 and redis.pcall('ZCARD', SUBQUEUE_ENTRIES(at)) == 0 then
      call('HDEL', COUNTS, counts[i])
      if tonumber(counts[i + 1]) > 0 then out[#out + 1], out[#out + 2] = counts[i], counts[i + 1] end
    end
  end
end
return out
