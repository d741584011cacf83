-- Which jobs have ended. ARGV: now, ids. Returns {now, letters}, one per job: a(ctive), e(nded), - for not stored here.
local letters = {}
for i = 2, #ARGV do
  local state = call('HGET', STATE, ARGV[i])
  local status = state and sub(state, 1, 1) or body_of(ARGV[i]) and 'p' or '-'
  letters[i - 1] = (status == 'p' or status == 'r' or status == 'a') and 'a' or status == '-' and '-' or 'e'
end
return {int(now), table.concat(letters)}
