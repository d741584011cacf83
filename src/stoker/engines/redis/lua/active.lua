-- with: _lots, _line
-- Who waits and who runs, at one instant. KEYS: those of the queues, then what each worker holds. ARGV: now, how many
-- queues. Answers their ids.
local queues, out, n = tonumber(ARGV[2]), {}, 0
for i = 1, queues do
  for _, place in ipairs(call('ZRANGE', WAIT(i), 0, -1)) do
    for _, id in ipairs(ids_at(place)) do
      n = n + 1
      out[n] = id
    end
  end
end
for i = 18 + 3 * queues, #KEYS do
  for _, id in ipairs(held_by(KEYS[i])) do
    n = n + 1
    out[n] = id
  end
end
return out
