-- Write notes on running jobs. ARGV: now, then each (id, fence, notes as the client knows them or '', new notes).
-- Returns {now, verdicts, stored notes}: a(pplied), l(ost), ? when the stored notes are others; then it writes nothing.
local verdicts, stored = {}, {}
for i = 2, #ARGV, 4 do
  local id, fence = ARGV[i], ARGV[i + 1]
  local state = call('HGET', STATE, id)
  local n = #verdicts + 1
  stored[n] = ''
  if not state or sub(state, 1, #fence) ~= fence then
    verdicts[n] = 'l'
  else
    local before = call('HGET', NOTES, id) or ''
    if before == ARGV[i + 2] then
      call('HSET', NOTES, id, ARGV[i + 3])
      verdicts[n] = 'a'
    else
      verdicts[n], stored[n] = '?', before
    end
  end
end
return {int(now), table.concat(verdicts), stored}
