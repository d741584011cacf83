-- with: _packed_ids, _waiting
-- The ids of all waiting and running jobs, at one instant. KEYS end with the workers' lease sets. ARGV: now, how many
-- queues.
local queues, out, n = tonumber(ARGV[2]), {}, 0
for i = 1, queues do
  for _, entry in ipairs(call('ZRANGE', WAIT(i), 0, -1)) do
    for _, id in ipairs(ids_at(entry)) do
      n = n + 1
      out[n] = id
    end
  end
  for _, member in ipairs(call('ZRANGE', SUBQUEUE_ENTRIES(i), 0, -1)) do
    for _, id in ipairs(ids_at(string.match(member, '^[^%z]*%z(.*)$') or '')) do
      n = n + 1
      out[n] = id
    end
  end
end
for i = 19 + STRIDE * queues, #KEYS do
  for _, id in ipairs(held_by(KEYS[i])) do
    n = n + 1
    out[n] = id
  end
end
return out
