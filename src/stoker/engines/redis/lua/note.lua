-- Notes, each (id, fence, notes as the client knows them or '', notes anew). Answers {now, verdicts, notes as stored}:
-- a(pplied), l(ost), ? when the notes are not those the client knew; nothing of that one is written then.
local word, stored = {}, {}
for i = 2, #ARGV, 4 do
  local id, fence = ARGV[i], ARGV[i + 1]
  local state = call('HGET', STATE, id)
  local n = #word + 1
  stored[n] = ''
  if not state or sub(state, 1, #fence) ~= fence then
    word[n] = 'l'
  else
    local before = call('HGET', NOTES, id) or ''
    if before == ARGV[i + 2] then
      call('HSET', NOTES, id, ARGV[i + 3])
      word[n] = 'a'
    else
      word[n], stored[n] = '?', before
    end
  end
end
return {int(now), table.concat(word), stored}
