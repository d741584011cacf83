-- Counters beside what is really there, at one instant.
-- Returns {counts, how many bodies there are, how many jobs of each status are listed as unsuccessful: a, x, c, i, t}.
local found = {}
for i, char in ipairs({'a', 'x', 'c', 'i', 't'}) do
  found[i] = call('ZLEXCOUNT', UNSUCCESSFUL, '[' .. char, '(' .. string.char(byte(char) + 1))
end
return {call('HGETALL', COUNTS), call('ZCARD', JOBS), found}
