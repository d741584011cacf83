-- `blocks` holds first8 · serial8 · last8 · count4 · low16 · high16 of each block of events, in the order of time;
-- `bodies` the same with the packed events behind it, scored by the serial. A serial is the number of events up to the end
-- of its block.
local BLOCKS, BODIES, POINTS, SERIAL, TICKETS, DELETED, REMOVED, PRESENCES, LOCKS, WRITES, WRITERS = unpack(KEYS, #KEYS - 10)

local function last_serial() return tonumber(call('GET', SERIAL) or '0') end

-- Remove a block. Returns how many events it had.
local function drop_block(head)
  local serial = int(parse('>I8', head, 9))
  call('ZREM', BLOCKS, head)
  call('ZREMRANGEBYSCORE', BODIES, serial, serial)
  return parse('>I4', head, 25)
end

-- Remove blocks all of whose events are older, until at least n events are gone. Returns how many.
local function drop_before(n, before)
  local gone = 0
  for _, head in ipairs(call('ZRANGEBYLEX', BLOCKS, '-', '(' .. pack('>I8', before), 'LIMIT', 0, n)) do
    if gone >= n then break end
    if parse('>I8', head, 17) < before then gone = gone + drop_block(head) end
  end
  return gone
end

-- Remove the blocks that were stored first, until no more than so many events are left.
local function drop_first(most)
  local serial = last_serial()
  while true do
    local first = call('ZRANGE', BODIES, 0, 0)[1]
    if not first then return end
    local head = sub(first, 1, 60)
    if serial - (parse('>I8', head, 9) - parse('>I4', head, 25)) <= most then return end
    drop_block(head)
  end
end

-- Drop what says which events are hidden, where no block is left that may hold them and none can come any more.
local function drop_removals(kept)
  local oldest, first = call('ZRANGE', BLOCKS, 0, 0)[1], call('ZRANGE', BODIES, 0, 0, 'WITHSCORES')[2]
  local before = now - kept
  if oldest then before = math.min(before, parse('>I8', oldest)) end
  call('ZREMRANGEBYSCORE', DELETED, '-inf', '(' .. int(before))
  call('ZREMRANGEBYSCORE', REMOVED, '-inf', '(' .. (first or '+inf'))
end

-- Hide the stored events of a job.
local function cross_out(job)
  if call('ZCARD', BLOCKS) > 0 then call('ZADD', REMOVED, int(last_serial()), job) end
end
