-- The second door. ARGV from `at`: worker, number of the key of what it holds, total, then for each queue: number of its keys, name, how many.
-- Answers, for each queue that gave something: {number of its keys, curve, cool-down count, jobs}. A fresh job is its
-- body alone (first attempt, token = now); another one is {body, state, last error, notes}.
-- The first jobs of a line that are due, at most n.
local function due_of(wait, n)
  local got = call('ZRANGE', wait, 0, n - 1)
  local c = #got
  if c == 0 then return got end
  local last = got[c]
  if sub(last, 1, 2) == sub(got[1], 1, 2) and parse('>I8', last, 3) <= now then
    call('ZREMRANGEBYRANK', wait, 0, c - 1)
    return got
  end
  -- Several priorities, or jobs of the future: each priority in turn, so that nobody is stepped over.
  local out, priority, after = {}, 0, pack('>I8', now + 1)
  while #out < n do
    local head = call('ZRANGEBYLEX', wait, '[' .. pack('>I2', priority), '+', 'LIMIT', 0, 1)[1]
    if not head then break end
    priority = parse('>I2', head)
    local p = sub(head, 1, 2)
    got = call('ZRANGEBYLEX', wait, '[' .. p, '(' .. p .. after, 'LIMIT', 0, n - #out)
    if #got > 0 then
      call('ZREMRANGEBYLEX', wait, '[' .. got[1], '[' .. got[#got])
      for _, m in ipairs(got) do out[#out + 1] = m end
    end
    priority = priority + 1
  end
  return out
end

local function take(queue, name, places, worker, mine, jobs)
  local n, ids, states = #places, {}, {}
  for i = 1, n do
    local place = places[i]
    ids[i] = sub(place, 11, 26)
    if #place > 26 then states[i] = call('HGET', STATE, ids[i]) end
  end
  -- Jobs mostly leave in the order they came: then one walk finds all bodies.
  local bodies = n > 1 and call('ZRANGEBYLEX', JOBS, '[' .. ids[1], '+', 'LIMIT', 0, n) or {}
  local w = pack('>I2', #worker) .. worker
  local fresh = 'r' .. now8 .. w .. pack('>c1I4I4I4I4I4I4I8c1', '0', 1, 0, 0, 0, 0, 0, now, '-')
  local set, lot, s, h = {}, {}, 0, 0
  local j, kind, pending = #jobs, nil, {}
  for i = 1, n do
    local id, place, state, body = ids[i], places[i], states[i], bodies[i]
    if not body or sub(body, 1, 16) ~= id then body = body_of(id) end
    local k = body and byte(body, 35)
    kind = k and byte(body, 36 + k) and sub(body, 36, 35 + k)
    if kind and not state then
      pending[kind] = (pending[kind] or 0) + 1
      s, h, j = s + 2, h + 1, j + 1
      set[s - 1], set[s] = id, fresh .. sub(place, 1, 10)
      lot[h] = id
      jobs[j] = body
    else
      local r = kind and names_of(body) and read_state(state)
      if r and (r.status == 'p' or r.status == 'a') then
        count(name .. '/' .. kind .. '/' .. r.status, -1)
        count(name .. '/' .. kind .. '/r', 1)
        if r.status == 'a' then
          call('ZREM', AGAIN(queue), id)
          call('ZREM', ODD, 'a' .. id)
        end
        r.status, r.worker, r.cancel, r.settled, r.tail = 'r', worker, '0', '-', ''
        r.token, r.attempts, r.started = math.max(now, r.token + 1), r.attempts + 1, now
        s, j = s + 2, j + 1
        set[s - 1], set[s] = id, write_state(r)
        hold(mine, pack('>I8', r.token), id)
        jobs[j] = {body, set[s], call('HGET', LAST, id), call('HGET', NOTES, id)}
      else
        kind = body and names_of(body)
        count(name .. '/' .. (kind or '') .. '/' .. (state and sub(state, 1, 1) == 'a' and 'a' or 'p'), -1)
        call('ZREM', AGAIN(queue), id)
        set_aside(id, name, kind, body, state)
      end
    end
  end
  if s > 0 then call('HSET', STATE, unpack(set)) end
  if h > 0 then hold(mine, now8, table.concat(lot)) end
  for kind_, c in pairs(pending) do
    count(name .. '/' .. kind_ .. '/p', -c)
    count(name .. '/' .. kind_ .. '/r', c)
  end
end

local function claim(at)
  local worker, mine, total = ARGV[at], KEYS[tonumber(ARGV[at + 1])], tonumber(ARGV[at + 2])
  local lease = tonumber(call('ZSCORE', WORKERS, worker) or '-1')
  local out = {}
  if lease < now then return out end
  for i = at + 3, #ARGV, 3 do
    local queue, name = tonumber(ARGV[i]), ARGV[i + 1]
    local left = math.min(tonumber(ARGV[i + 2]), total)
    local gate = call('HMGET', QUEUES, name .. '/paused', name .. '/until', name .. '/curve', name .. '/count')
    if left > 0 and not gate[1] and not (gate[2] and tonumber(gate[2]) > now) then
      local jobs = {}
      while left > 0 do
        local places = due_of(WAIT(queue), math.min(left, 1000))
        if #places == 0 then break end
        local before = #jobs
        take(queue, name, places, worker, mine, jobs)
        left = left - (#jobs - before)
      end
      if #jobs > 0 then
        total = total - #jobs
        out[#out + 1] = {queue, gate[3], gate[4], jobs}
        if left == 0 then
          local head = call('ZRANGE', WAIT(queue), 0, 0)[1]
          if head and parse('>I8', head, 3) <= now then wake(queue) end
        end
      end
    end
  end
  return out
end
