-- What became of some jobs. ARGV: ids. Answers {now, word}: one letter per job, a(ctive), e(nded) or - for not stored here.
local word = {}
for i = 2, #ARGV do
  local state = call('HGET', STATE, ARGV[i])
  local status = state and sub(state, 1, 1) or body_of(ARGV[i]) and 'p' or '-'
  word[i - 1] = (status == 'p' or status == 'r' or status == 'a') and 'a' or status == '-' and '-' or 'e'
end
return {int(now), table.concat(word)}
