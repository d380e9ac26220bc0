-- Updates entries of the index, each unless a newer one is stored, and removes marks.
--
-- KEYS[1]  entries: id -> revision, payload and the names of the orders it is in
-- KEYS[2]  marks
-- ARGV[1]  the prefix of the orders' keys
-- ARGV[2]  how many marks follow
-- Then entries, each as: id, revision, payload ('' if it is gone), how many orders, and per order its name and score.
local prefix = ARGV[1]
local at = 3
for mark = 1, tonumber(ARGV[2]) do
  redis.call('HDEL', KEYS[2], ARGV[at])
  at = at + 1
end
while at <= #ARGV do
  local id, revision, payload, count = ARGV[at], ARGV[at + 1], ARGV[at + 2], tonumber(ARGV[at + 3])
  at = at + 4
  local stored = redis.call('HGET', KEYS[1], id)
  local known = stored and cmsgpack.unpack(stored)
  if not known or tonumber(known[1]) <= tonumber(revision) then
    local wanted, names = {}, {}
    for place = 0, count - 1 do
      local name = ARGV[at + 2 * place]
      wanted[name] = true
      names[#names + 1] = name
      redis.call('ZADD', prefix .. name, ARGV[at + 2 * place + 1], id)
    end
    for _, name in ipairs(known and known[3] or {}) do
      if not wanted[name] then
        redis.call('ZREM', prefix .. name, id)
      end
    end
    redis.call('HSET', KEYS[1], id, cmsgpack.pack({revision, payload, names}))
  end
  at = at + 2 * count
end
return 1
