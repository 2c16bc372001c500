-- Adds the visits of one call to one part of a run's table. Atomic: Redis runs a script alone. It is no retry-safe script: asked
-- twice, it adds twice.
--
-- KEYS[1]  the part: code -> count, a hash
-- ARGV[1]  code width in bytes, ttl in ms, how many codes the part may hold
-- ARGV[2]  distinct codes, packed
-- ARGV[3]  how many visits to add to each of them, packed, 4 bytes each, little-endian; 0: it is only looked up
--
-- Returns one string: how many codes were taken in; a comma; how many were not stored, because the part has as many as it may or
-- Redis is full; a semicolon; how often each code had been seen before, decimal, separated by commas.

local CHUNK = 1000 -- Lua passes at most some 8,000 arguments to a function

local width, ttl, limit = struct.unpack('<I4I8I8', ARGV[1])
local codes, times = ARGV[2], ARGV[3]
local total = #codes / width
local room = limit - redis.call('HLEN', KEYS[1])
local before, new, unstored = {}, 0, 0

for first = 1, total, CHUNK do
  local n = math.min(CHUNK, total - first + 1)
  local fields = {}
  for i = 1, n do
    local at = (first + i - 2) * width
    fields[i] = string.sub(codes, at + 1, at + width)
  end
  local old = redis.call('HMGET', KEYS[1], unpack(fields))
  local updates, fresh = {}, 0
  for i = 1, n do
    before[first + i - 1] = old[i] or '0'
    local visits = struct.unpack('<I4', times, 4 * (first + i - 1) - 3)
    if visits > 0 then
      if old[i] or fresh < room then
        if not old[i] then fresh = fresh + 1 end
        updates[#updates + 1] = fields[i]
        updates[#updates + 1] = (old[i] or 0) + visits
      else
        unstored = unstored + 1
      end
    end
  end
  if #updates > 0 then
    local done = redis.pcall('HSET', KEYS[1], unpack(updates))
    if type(done) ~= 'table' then
      room, new = room - fresh, new + fresh
    elseif string.find(done.err, 'OOM', 1, true) then
      unstored = unstored + #updates / 2
    else
      return done
    end
  end
end

redis.call('PEXPIRE', KEYS[1], ttl)
return new .. ',' .. unstored .. ';' .. table.concat(before, ',')
