-- Removes entries of things that are long gone.
--
-- KEYS[1]  entries, KEYS[2]  the order of what is gone
-- ARGV[1]  up to which time, in ms
-- Returns how many were removed; there may be more.
local ids = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', ARGV[1], 'LIMIT', 0, 1000)
if #ids > 0 then
  redis.call('HDEL', KEYS[1], unpack(ids))
  redis.call('ZREM', KEYS[2], unpack(ids))
end
return #ids
