-- Finds a page of an order of the index, or of some of its parts, the newest first.
--
-- KEYS[1]  entries, KEYS[2]  marks, KEYS[3]  what vanishes, KEYS[4]  the order, KEYS[5...]  its parts, wanted first
-- ARGV[1]  lowest and ARGV[2] highest score, ARGV[3] offset, ARGV[4] how many, 0 for all
-- ARGV[5]  time by which an entry may have vanished, ARGV[6] how many parts are wanted, 0 for the order as a whole
--
-- Returns {server time in us, marks, total, {id, payload, id, payload, ...}}. The total is -1 if something has vanished
-- or if the order holds entries that are in none of its parts because they were written before it had them. Then the
-- answer is everything in the order, for the caller to choose from.
local clock = redis.call('TIME')
local marks = redis.call('HGETALL', KEYS[2])
local offset, limit, wanted = ARGV[3], ARGV[4], tonumber(ARGV[6])

local in_parts = 0
for number = 5, #KEYS do
  in_parts = in_parts + redis.call('ZCARD', KEYS[number])
end
local told = #KEYS == 4 or in_parts == redis.call('ZCARD', KEYS[4])
told = told and redis.call('ZCOUNT', KEYS[3], '-inf', ARGV[5]) == 0

local first, last = 4, 4
if told and wanted > 0 then
  first, last = 5, 4 + wanted
end
if not told or limit == '0' then
  offset, limit = '0', '-1'
end
local total = 0
local found = {}
for number = first, last do
  total = total + redis.call('ZCOUNT', KEYS[number], ARGV[1], ARGV[2])
  for _, id in ipairs(redis.call('ZREVRANGEBYSCORE', KEYS[number], ARGV[2], ARGV[1], 'LIMIT', offset, limit)) do
    local stored = redis.call('HGET', KEYS[1], id)
    local payload = stored and cmsgpack.unpack(stored)[2] or ''
    if payload ~= '' then
      found[#found + 1] = id
      found[#found + 1] = payload
    end
  end
end
return {string.format('%.0f', clock[1] * 1000000 + clock[2]), marks, told and total or -1, found}
