-- Forget keys of a budget whose buckets are full again. KEYS end with their sorted set by that time and their hash.
-- ARGV: now, how many at most. Returns how many.
local full, kept = KEYS[#KEYS - 1], KEYS[#KEYS]
local keys = call('ZRANGEBYSCORE', full, '-inf', int(now), 'LIMIT', 0, tonumber(ARGV[2]))
for _, key in ipairs(keys) do
  call('HDEL', kept, key)
  call('ZREM', full, key)
end
if #keys > 0 then tick() end
return #keys
