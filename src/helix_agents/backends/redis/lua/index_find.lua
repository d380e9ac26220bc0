-- Finds entries of the index by one or several orders, and reports the existing marks.
--
-- KEYS[1]  entries, KEYS[2]  marks, KEYS[3...]  orders
-- ARGV[1]  'up' or 'down', ARGV[2] lowest and ARGV[3] highest score, ARGV[4] how many, 0 for all
-- ARGV[5...]  further ids to find
--
-- Returns {server time in us, marks, {id, payload, id, payload, ...}}.
local clock = redis.call('TIME')
local marks = redis.call('HGETALL', KEYS[2])
local limit = tonumber(ARGV[4])
local found = {}

local function add(id)
  local stored = redis.call('HGET', KEYS[1], id)
  local payload = stored and cmsgpack.unpack(stored)[2] or ''
  if payload ~= '' then
    found[#found + 1] = id
    found[#found + 1] = payload
  end
end

for number = 3, #KEYS do
  local call = {'ZRANGEBYSCORE', KEYS[number], ARGV[2], ARGV[3]}
  if ARGV[1] == 'down' then
    call = {'ZREVRANGEBYSCORE', KEYS[number], ARGV[3], ARGV[2]}
  end
  if limit > 0 then
    call[5], call[6], call[7] = 'LIMIT', 0, limit
  end
  for _, id in ipairs(redis.call(unpack(call))) do
    add(id)
  end
end
for number = 5, #ARGV do
  add(ARGV[number])
end
return {string.format('%.0f', clock[1] * 1000000 + clock[2]), marks, found}
