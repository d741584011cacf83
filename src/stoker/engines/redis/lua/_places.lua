-- Does a job without a state wait? It has not run, so it stands at the priority and the time that its body names. Jobs
-- that came together share an entry: what stands at each place is read once.
local entries_at = {}
local function waits(id, body)
  local _, queue = names_of(body)
  local head = sub(body, 33, 34) .. sub(body, 25, 32)
  local place = queue .. '/' .. head
  if not entries_at[place] then
    local prefix, due = sub(STATE, 1, -6), int(parse('>I8', head, 3))
    local waiting = redis.pcall('ZRANGEBYLEX', prefix .. 'wait:' .. queue, '[' .. head, '(' .. head .. string.rep('\255', 17))
    local others = redis.pcall('ZRANGEBYSCORE', prefix .. 'dues:' .. queue, due, due)
    -- Where a key holds another type the whole queue stands still, and that is said elsewhere (`guarded`).
    if waiting.err or others.err then return true end
    entries_at[place] = table.concat(waiting) .. table.concat(others)
  end
  return string.find(entries_at[place], id, 1, true)
end
