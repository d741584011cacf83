-- The head of every script: names of the keys, the store's clock, and the formats of body and state (FORMAT.md).
-- KEYS: the shard's fixed keys (keys.py), then wait, retrying and wake of each queue (in the form for queues with
-- subqueues also subqueue_entries, subqueues, order and dues), then what a script asks for.
-- ARGV[1]: now in microseconds, '' for the server's time, or '@engine' for the server's time and a counted write.
local KEYS, ARGV, unpack = KEYS, ARGV, unpack
local call, sub, byte, fmt = redis.call, string.sub, string.byte, string.format
local pack, parse = struct.pack, struct.unpack
local JOBS, STATE, LAST, ERRORS, NOTES, RESULTS, SLOTS, NAMED, UNSUCCESSFUL, ENDS, WORKERS, RETIRED, COUNTS,
  TOTALS, QUEUES, CLOCK, CORRUPT, KEEPS = unpack(KEYS, 1, 18)
-- How many keys each queue has, and whether those of subqueues are among them.
local STRIDE, WITH_SUBQUEUES = $STRIDE$, $SUBQUEUES$
local function WAIT(i) return KEYS[19 + (i - 1) * STRIDE] end
local function RETRYING(i) return KEYS[20 + (i - 1) * STRIDE] end
local function WAKE(i) return KEYS[21 + (i - 1) * STRIDE] end
local function SUBQUEUE_ENTRIES(i) return KEYS[22 + (i - 1) * STRIDE] end
local function DUES(i) return KEYS[25 + (i - 1) * STRIDE] end

-- Numbers are doubles: exact up to 2^53, and only %.0f writes them in full.
local function int(n) return fmt('%.0f', n) end

local now = tonumber(ARGV[1])
if not now then
  local t = call('TIME')
  now = t[1] * 1000000 + t[2]
end
local mark = tonumber(call('GET', CLOCK) or '0')
-- The store's clock does not follow a server's clock that goes back by up to a minute; a mark further ahead is wrong.
if mark > now and mark - now <= 60000000 then now = mark end
local now8 = pack('>I8', now)
-- Write the time. Never a script's first write: at maxmemory the server accepts a script only if it begins with a
-- removal.
local function tick()
  if now == mark then return end
  if mark > now then
    -- The wrong mark goes. Leases written under it must not last until its time: a lease that had not ended keeps what
    -- it had left, another one gets the default lease.
    local held = call('ZRANGEBYSCORE', WORKERS, '(' .. int(now + $LEASE$), '+inf', 'WITHSCORES')
    for i = 1, #held, 2 do
      local left = tonumber(held[i + 1]) - mark
      call('ZADD', WORKERS, int(now + (left > 0 and left or $LEASE$)), held[i])
    end
  end
  call('SET', CLOCK, int(now))
end

-- The time, and for a counted write how many writes of its engine the store has seen (lost_writes.py).
local function counted_now()
  if sub(ARGV[1], 1, 1) ~= '@' then return int(now) end
  local n = redis.pcall('HINCRBY', KEYS[#KEYS], sub(ARGV[1], 2), 1)
  return type(n) == 'number' and int(now) .. ':' .. int(n) or int(now)
end

local function body_of(id) return call('ZRANGEBYLEX', JOBS, '[' .. id, '(' .. id .. '\1')[1] end

-- Kind and queue; nil when this is no body.
local function names_of(body)
  local k = byte(body, 35)
  local q = k and byte(body, 36 + k)
  if not q or #body < 41 + k + q then return nil end
  return sub(body, 36, 35 + k), sub(body, 37 + k, 36 + k + q)
end

-- A state as a table, nil when this is none.
local function read_state(s)
  if #s < 11 then return nil end
  local status, token, w = parse('>c1I8I2', s)
  if #s < 11 + w + $STATE_SIZE$ then return nil end
  local r = {status = status, token = token, worker = sub(s, 12, 11 + w)}
  local at
  $STATE_FIELDS$, at = parse('$STATE_FORMAT$', s, 12 + w)
  r.tail = sub(s, at)
  return r
end

local function write_state(r)
  return pack('>c1I8I2', r.status, r.token, #r.worker) .. r.worker
    .. pack('$STATE_FORMAT$', $STATE_FIELDS$) .. r.tail
end

-- The waiting entry of a job that has a state; the '+' spares the claim of other jobs the look for one.
local function waiting_entry(priority, due, id) return pack('>I2I8', priority, due) .. id .. '+' end

-- A waiting entry is priority2 · due8 and whole ids, or one id and '+'; stored priorities end at 2,001.
local function is_entry(e) return #e >= 26 and (#e % 16 == 10 or #e == 27) and byte(e) < 8 end

-- model.job.FIRST: does this entry or head begin with the priority of a job that an operator put first?
local function is_first(e) return sub(e, 1, 2) == '\0\0' end

-- Damage that a script meets (FORMAT.md, `damage`). It goes on with the rest, and `reply` gives the client what to log:
-- each field once, until a cleaning has looked at it (damage.py).
local said, DAMAGE = {}, sub(STATE, 1, -6) .. 'damage'
local function warn_once(field, text)
  -- A server without free memory refuses this write if it is the first: then the warning comes again.
  if redis.pcall('HSETNX', DAMAGE, field, text) ~= 0 then said[#said + 1] = text end
end
local function reply(out)
  if #said == 0 then return out end
  return {'!', said, out}
end
-- Do what concerns one queue. Where one of its keys holds another type, the other queues go on.
local function guarded(name, work, ...)
  local sound, result = pcall(work, ...)
  if sound then return result end
  local text = type(result) == 'table' and result.err or tostring(result)
  if not string.find(text, 'WRONGTYPE', 1, true) then error(result, 0) end
  redis.pcall('HSETNX', DAMAGE, 'entries', 'a key of queue ' .. name .. ' holds another type')
  warn_once('queue:' .. name, fmt('queue %s: one of its keys holds another type than Stoker wrote there. The queue stands '
    .. 'still, and the other queues go on. Delete the key: the next cleaning restores its entries', name))
end
-- Does a queue hand out jobs by settings that can be read? Where one cannot, the queue stands still.
local function readable(name, paused, till, bucket)
  if not bucket and (not paused or tonumber(paused)) and (not till or tonumber(till)) then return true end
  local sound, b = pcall(cjson.decode, bucket or '[0,0,0,0,0]')
  sound = sound and type(b) == 'table' and tonumber(paused or '0') and tonumber(till or '0')
  for i = 1, 5 do sound = sound and type(b[i]) == 'number' end
  if sound then return true end
  warn_once('queue:' .. name, fmt('queue %s: its pause, rate or cool-down cannot be read. The queue stands still, and the '
    .. 'other queues go on. Tune the queue, or start its app anew, which declares it', name))
end
local function printable(bytes)
  return (string.gsub(sub(bytes, 1, 40), '[^ !#-%[%]-~]', function(c) return fmt('\\x%02x', byte(c)) end))
end

-- Sum up changes of counters, to write each counter once.
local sums, sums_list = {}, {}
local function count(field, n)
  if not sums[field] then sums[field] = 0; sums_list[#sums_list + 1] = field end
  sums[field] = sums[field] + n
end
local function write_counts()
  for _, field in ipairs(sums_list) do
    if sums[field] ~= 0 then call('HINCRBY', COUNTS, field, sums[field]) end
  end
  sums, sums_list = {}, {}
end

-- model.ahead.wakes: a job that is due so soon may become due before a worker claims again.
local function is_soon(due) return due <= now + 2000000 end

-- One token per queue is enough: the worker that takes it claims from the whole queue.
local function wake(i)
  if call('LLEN', WAKE(i)) == 0 then call('RPUSH', WAKE(i), '1') end
end
