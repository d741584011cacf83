-- Claim due jobs. ARGV from `at`: worker, number of the key of its lease set, how many in all; then for each queue the
-- number of its keys, its name, and how many.
-- Returns for each queue with claims {number of its keys, curve, cool-down count, jobs}. A job without a state is its
-- body alone (first attempt, token = now); another one is {body, state, last error, notes, status before, rows of a
-- suspended one}. A fifth value means that the client has to ask again from this queue on: it has subqueues and this form
-- of the script does not know subqueues, or it has more of them to look at, or more jobs to hand out, than one script should.

-- A queue's rate and its tokens now (model.throttle.level); nil: it has no rate. `control.py` writes it first.
local function bucket_of(stored)
  if not stored then return nil end
  local b = cjson.decode(stored)
  b.tokens = math.min(b[3], b[4] + math.max(0, now - b[5]) / 1000000 * (b[1] / b[2]))
  return b
end

-- Take tokens from a queue's bucket (model.throttle.take).
local function take_tokens(name, b, n)
  b.tokens = b.tokens - n
  local stored = fmt('[%.17g,%.17g,%.17g,%.17g,%.0f]', b[1], b[2], b[3], b.tokens, math.max(now, b[5]))
  call('HSET', QUEUES, name .. '/bucket', stored)
end

-- Is this the end of a pause that lasts? 0: it has no end.
local function lasts(paused) return paused and (paused == '0' or tonumber(paused) > now) end

-- Claim up to `left` jobs of a queue; returns the value that asks the client to call again, if it has to.
-- `first_only`: only what an operator put first.
local function claim_queue(queue, name, left, worker, mine, jobs, subqueues, first_only)
  if subqueues then
    local some = math.min(left, $CLAIMED_AT_ONCE$)
    local more = claim_from_subqueues(subqueues, queue, some, worker, mine, jobs, first_only)
    return (more or (#jobs == some and some < left)) and '1' or nil
  end
  if first_only then
    local head = call('ZRANGEBYLEX', WAIT(queue), '-', '(\0\0' .. pack('>I8', now + 1), 'LIMIT', 0, 1)[1]
    if not head or not is_entry(head) then return end
  end
  while left > 0 do
    local batch, seen = due_of(name, WAIT(queue), math.min(left, 1000))
    if seen == 0 then break end
    local before = #jobs
    take(queue, name, batch, worker, mine, jobs)
    left = left - (#jobs - before)
  end
end

-- May a worker claim more of this queue at once?
local function more_due(queue, subqueues)
  if subqueues then return has_more(subqueues, WAIT(queue)) end
  local head = call('ZRANGE', WAIT(queue), 0, 0)[1]
  return head and (not is_entry(head) or parse('>I8', head, 3) <= now)
end

local function claim(at)
  local worker, mine, total = ARGV[at], KEYS[tonumber(ARGV[at + 1])], tonumber(ARGV[at + 2])
  local lease = tonumber(call('ZSCORE', WORKERS, worker) or '-1')
  local out = {}
  if lease < now then return out end
  for i = at + 3, #ARGV, 3 do
    local queue, name = tonumber(ARGV[i]), ARGV[i + 1]
    local left = math.min(tonumber(ARGV[i + 2]), total)
    local gate = call('HMGET', QUEUES, name .. '/paused', name .. '/until', name .. '/curve', name .. '/count',
      name .. '/bucket', name .. '/has_subqueues')
    if not readable(name, gate[1], gate[2], gate[5]) then left, gate[5] = 0, false end
    local bucket = bucket_of(gate[5])
    -- model.control.Queue.starts
    local first_only = bucket and left > 0 and bucket.tokens >= 0 and bucket.tokens < 1
    if first_only then left = 1 elseif bucket then left = math.min(left, math.floor(bucket.tokens)) end
    if left > 0 and not lasts(gate[1]) and not (gate[2] and tonumber(gate[2]) > now) then
      local jobs, subqueues = {}, nil
      if gate[6] then
        if not WITH_SUBQUEUES then
          out[#out + 1] = {queue, '', '', jobs, '1'}
          return out
        end
        subqueues = subqueues_of(name, 22 + (queue - 1) * STRIDE)
      end
      local again = guarded(name, claim_queue, queue, name, left, worker, mine, jobs, subqueues, first_only)
      if #jobs > 0 or again then
        total, left = total - #jobs, left - #jobs
        if bucket then take_tokens(name, bucket, #jobs) end
        out[#out + 1] = {queue, gate[3], gate[4], jobs, again}
        if again then return out end
        if left == 0 and not (bucket and bucket.tokens < 1) and more_due(queue, subqueues) then wake(queue) end
      end
    end
  end
  return out
end
