-- Counts one batch of each of some episodes, exactly once. Atomic: Redis runs a script alone.
--
-- KEYS[2i-1]  of batch i the record: RECORD (below) .. answer, a string
-- KEYS[2i]    of batch i the visit table: code -> count, a hash. Both keys are in one cluster slot and expire together.
-- ARGV[1]  of all batches: code width in bytes, ttl in ms, retry window in ms
-- ARGV[2]  of each batch, one after another: sequence, 1 if final, number of distinct codes, digest of its content
-- ARGV[3]  the distinct codes of the batches, packed, in order of first appearance
-- ARGV[4]  how often each of them is in its batch, packed, 2 bytes each, little-endian
--
-- Returns one string for each batch, first a letter that says what happened. For (C)ounted and (R)eplayed there follow: how
-- many codes were new; a semicolon; the answer: how often each distinct code had been seen before this batch, decimal,
-- separated by commas. The service makes the counts in order from it.
-- Refusals: (G)ap, (S)tale, (F)inished and the last sequence; (L)ost; (D)ifferent content; (W)idth and the width expected;
-- (E)rror and what Redis says, which is of this batch alone.

local CALL = '<I4I8I8'
local BATCH = '<I4BI4c8'
local RECORD = '<I4I4I4Bc8' -- sequence, code width, distinct codes in the table, 1 if finished, digest
local CHUNK = 1000          -- Lua passes at most some 8,000 arguments to a function

local call, sub, byte, unpack = redis.call, string.sub, string.byte, unpack
local width, ttl, retry_window = struct.unpack(CALL, ARGV[1])
local codes, times = ARGV[3], ARGV[4]
local decimal = {} -- of numbers: Redis itself would write each as a fraction, which takes many times longer

local function count(record_key, table_key, sequence, final, digest, before, total)
  local record = call('GET', record_key)
  local known = 0
  if record then
    local last, last_width, distinct, finished, last_digest, answer_at = struct.unpack(RECORD, record)
    if width ~= last_width then return 'W' .. last_width end
    if sequence == last then
      if digest ~= last_digest then return 'D' end
      return 'R0;' .. sub(record, answer_at)
    end
    if sequence < last then return 'S' .. last end
    if finished == 1 then return 'F' .. last end
    if sequence > last + 1 then return 'G' .. last end
    known = distinct
  elseif sequence > 0 then
    return 'L'
  end

  -- A table that is not what the record says was evicted or tampered with. Without a record, what is left of one is removed.
  local size = call('HLEN', table_key)
  if size ~= known then
    if record then return 'L' end
    call('DEL', table_key)
    size = 0
  end

  local seen = {}
  for first = 1, total, CHUNK do
    local n = math.min(CHUNK, total - first + 1)
    local at = (before + first - 1) * width
    local fields = {}
    for i = 1, n do
      fields[i] = sub(codes, at + 1, at + width)
      at = at + width
    end
    local old = call('HMGET', table_key, unpack(fields))
    local bytes = { byte(times, 2 * (before + first) - 1, 2 * (before + first + n - 1)) }
    local updates = {}
    for i = 1, n do
      local visits = old[i]
      if not visits then
        visits = '0'
        known = known + 1
      end
      seen[first + i - 1] = visits
      local now = visits + bytes[2 * i - 1] + 256 * bytes[2 * i]
      local text = decimal[now]
      if not text then
        text = string.format('%d', now)
        decimal[now] = text
      end
      updates[2 * i - 1] = fields[i]
      updates[2 * i] = text
    end
    if final == 0 then call('HSET', table_key, unpack(updates)) end
  end

  -- When memory is short Redis refuses the first write of a script that could need more, and none after one that it took. So
  -- a batch changes everything or nothing; and a final batch whose first write frees a table always gets through.
  local answer = table.concat(seen, ',')
  if final == 1 then
    if size > 0 then call('UNLINK', table_key) end
  else
    call('PEXPIRE', table_key, ttl)
  end
  call('SET', record_key, struct.pack(RECORD, sequence, width, known, final, digest) .. answer,
    'PX', final == 1 and retry_window or ttl)
  return 'C' .. (known - size) .. ';' .. answer
end

local replies = {}
local header, before = 1, 0
for i = 1, #KEYS / 2 do
  local sequence, final, total, digest
  sequence, final, total, digest, header = struct.unpack(BATCH, ARGV[2], header)
  local fine, answer = pcall(count, KEYS[2 * i - 1], KEYS[2 * i], sequence, final, digest, before, total)
  replies[i] = fine and answer or 'E' .. (type(answer) == 'table' and answer.err or tostring(answer))
  before = before + total
end
return replies
