-- Counts one batch of one episode, exactly once. Atomic: Redis runs a script alone.
--
-- KEYS[1]  the record: RECORD (below) .. answer, a string
-- KEYS[2]  the visit table: code -> count, a hash. Both keys are in one cluster slot and expire together.
-- ARGV[1]  the batch: sequence, code width in bytes, 1 if final, ttl in ms, retry window in ms, digest of its content
-- ARGV[2]  the distinct codes of the batch, packed, in order of first appearance
-- ARGV[3]  how often each of them is in the batch, packed, 2 bytes each, little-endian
--
-- Returns one string, first a letter that says what happened. For (C)ounted and (R)eplayed there follow: how many codes were
-- new; a semicolon; the answer: how often each distinct code had been seen before this batch, decimal, separated by commas.
-- The service makes the counts in order from it.
-- Refusals: (G)ap, (S)tale, (F)inished and the last sequence; (L)ost; (D)ifferent content; (W)idth and the width expected.

local BATCH = '<I4I4BI8I8c8'
local RECORD = '<I4I4I4Bc8' -- sequence, code width, distinct codes in the table, 1 if finished, digest
local CHUNK = 1000          -- Lua passes at most some 8,000 arguments to a function

local sequence, width, final, ttl, retry_window, digest = struct.unpack(BATCH, ARGV[1])
final = final == 1
local record = redis.call('GET', KEYS[1])
local known = 0

if record then
  local last, last_width, distinct, finished, last_digest, answer_at = struct.unpack(RECORD, record)
  if width ~= last_width then return 'W' .. last_width end
  if sequence == last then
    if digest ~= last_digest then return 'D' end
    return 'R0;' .. string.sub(record, answer_at)
  end
  if sequence < last then return 'S' .. last end
  if finished == 1 then return 'F' .. last end
  if sequence > last + 1 then return 'G' .. last end
  known = distinct
elseif sequence > 0 then
  return 'L'
end

-- A table that is not what the record says was evicted or tampered with. Without a record, what is left of one is removed.
local size = redis.call('HLEN', KEYS[2])
if size ~= known then
  if record then return 'L' end
  redis.call('DEL', KEYS[2])
  size = 0
end

local codes, times = ARGV[2], ARGV[3]
local total = #codes / width
local before = {}
for first = 1, total, CHUNK do
  local n = math.min(CHUNK, total - first + 1)
  local fields = {}
  for i = 1, n do
    local at = (first + i - 2) * width
    fields[i] = string.sub(codes, at + 1, at + width)
  end
  local old = redis.call('HMGET', KEYS[2], unpack(fields))
  local bytes = { string.byte(times, 2 * first - 1, 2 * (first + n - 1)) }
  local updates = {}
  for i = 1, n do
    local count = old[i] or '0'
    if count == '0' then known = known + 1 end
    before[first + i - 1] = count
    updates[2 * i - 1] = fields[i]
    updates[2 * i] = count + bytes[2 * i - 1] + 256 * bytes[2 * i]
  end
  if not final then redis.call('HSET', KEYS[2], unpack(updates)) end
end

-- When memory is short Redis refuses the first write of a script that could need more, and none after that. So a batch
-- changes everything or nothing; and a final batch whose first write frees a table always gets through.
local answer = table.concat(before, ',')
if final then
  if size > 0 then redis.call('UNLINK', KEYS[2]) end
else
  redis.call('PEXPIRE', KEYS[2], ttl)
end
redis.call('SET', KEYS[1], struct.pack(RECORD, sequence, width, known, final and 1 or 0, digest) .. answer,
  'PX', final and retry_window or ttl)
return 'C' .. (known - size) .. ';' .. answer
