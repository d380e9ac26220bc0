-- Reads and writes keys of one slot, if everything is still as the caller knows it.
--
-- An entity is a hash whose field '#' is its revision; a change to it, or to keys it stands for, raises the revision.
-- Revisions grow with the server's clock, so that one that was deleted and made again is never taken for the first.
--
-- ARGV[1]  until which server time, in ms, this may be done; 0 for ever
-- ARGV[2]  1 if the replies are wanted
-- ARGV[3]  how many expectations follow, each as three: number of its key, kind, value
--            '=' the entity has this revision ('' if it is not there)
--            '+' the same, and it is changed now
--            '?' whatever it is
--            '*' whatever it is, and it is changed now
--            '#' the list has this length
-- Then commands, each as: how many arguments, name, number of its key (0: none), arguments.
--
-- Answers {1, server time in us, revisions, replies}; {0, server time in us, number} if the entity of that key is not as
-- expected; {-1, server time in us, number} if a list is shorter or longer than it was left.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local stamp = string.format('%.0f', now)
local latest = tonumber(ARGV[1])
if latest > 0 and now > latest * 1000 then
  return {0, stamp, 0}
end

local revisions, changed = {}, {}
local at = 4
for place = 1, tonumber(ARGV[3]) do
  local number, kind, expected = tonumber(ARGV[at]), ARGV[at + 1], ARGV[at + 2]
  local key = KEYS[number]
  if kind == '#' then
    if redis.call('LLEN', key) ~= tonumber(expected) then
      return {-1, stamp, number}
    end
  else
    local found = redis.call('HGET', key, '#') or ''
    if kind ~= '?' and kind ~= '*' and found ~= expected then
      return {0, stamp, number}
    end
    if kind == '+' or kind == '*' then
      found = string.format('%.0f', math.max(now, (tonumber(found) or 0) + 1))
      changed[key] = found
    end
    revisions[#revisions + 1] = found
  end
  at = at + 3
end

for key, revision in pairs(changed) do
  redis.call('HSET', key, '#', revision)
end

local wanted = ARGV[2] == '1'
local replies = {}
while at <= #ARGV do
  local count, name, number = tonumber(ARGV[at]), ARGV[at + 1], tonumber(ARGV[at + 2])
  local first, last = at + 3, at + 2 + count
  local reply
  if number == 0 then
    reply = redis.call(name, unpack(ARGV, first, last))
  else
    reply = redis.call(name, KEYS[number], unpack(ARGV, first, last))
  end
  if wanted then
    replies[#replies + 1] = reply
  end
  at = last + 1
end
return {1, stamp, revisions, replies}
