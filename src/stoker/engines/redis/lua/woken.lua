-- The callers of closed groups have been told. KEYS behind the fixed ones: the key `groups`, and those of the groups.
-- Returns for each group 1 if this call noted it.
local out = {}
for i = 20, #KEYS do
  out[i - 19] = call('HDEL', KEYS[i], 'p')
  if out[i - 19] == 1 then call('ZADD', KEYS[19], call('HGET', KEYS[i], 'expires'), KEYS[i]) end
end
return out
