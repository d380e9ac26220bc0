-- Reads and writes keys of one slot, if everything is still as the caller knows it.
--
-- An entity is a hash whose field '#' is its revision; a change to it, or to keys it guards, raises the revision.
-- Revisions grow with the server's clock, so that an entity that was deleted and created again is never mistaken for
-- the first one.
--
-- ARGV[1]  the plan, words separated by spaces:
--            the server time, in ms, until which this may be done, 0 for any time
--            1 if the replies are wanted
--            the number of expectations that follow, each as three words: number of its key, kind, value
--              '=' the entity has this revision ('-' if it does not exist)
--              '+' the same, and it is changed now
--              '?' any revision
--              '*' any revision, and it is changed now
--              '#' the list has this length
--            then commands, each as three words: name, number of its key (0: none), number of arguments
-- Then the arguments of the commands, in their order.
--
-- LINE is a command of our own: it reads the rows of a line of history from a segment on, down to the stretch that
-- holds a message or a state write. Its arguments are the segment and both numbers; each row ends in the segment that
-- continues the line.
--
-- Returns 1, server time in us and revisions; 0, server time in us and number if the entity of that key is not as
-- expected; -1, server time in us and number if a list is shorter or longer than it was left. If replies are wanted,
-- the answer is {1, server time in us, {revisions}, {replies}}, or three parts. Otherwise it is one line of words, read
-- in one go, in which '-' stands for no revision. A line longer than LINE_BYTES is too long for that and is sent as a
-- text.
local LINE_BYTES = 32000
local plan, words = {}, 0
for word in string.gmatch(ARGV[1], '%S+') do
  words = words + 1
  plan[words] = word
end
local wanted = plan[2] == '1'
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local stamp = string.format('%.0f', now)

local function refused(code, number)
  if wanted then
    return {code, stamp, number}
  end
  return {ok = code .. ' ' .. stamp .. ' ' .. number}
end

local latest = tonumber(plan[1])
if latest > 0 and now > latest * 1000 then
  return refused(0, 0)
end

local revisions, changed = {}, {}
local at = 4
for place = 1, tonumber(plan[3]) do
  local number, kind, expected = tonumber(plan[at]), plan[at + 1], plan[at + 2]
  local key = KEYS[number]
  if kind == '#' then
    if redis.call('LLEN', key) ~= tonumber(expected) then
      return refused(-1, number)
    end
  else
    local found = redis.call('HGET', key, '#') or '-'
    if kind ~= '?' and kind ~= '*' and found ~= expected then
      return refused(0, number)
    end
    if kind == '+' or kind == '*' then
      found = string.format('%.0f', math.max(now, (tonumber(found) or 0) + 1))
      changed[key] = found
    end
    revisions[#revisions + 1] = found
  end
  at = at + 3
end

local function line(key, segment, message, state)
  local rows = {}
  repeat
    local row = redis.call('HGET', key, segment)
    rows[#rows + 1] = row
    local parts = row and cjson.decode(row).line
    local last = parts and parts[#parts]
    segment = last and last[1]
  until not last or last[2] < message or last[3] < state or string.sub(segment, 1, 5) == 'first'
  return rows
end

-- A new revision is written with the first command for its entity, or before it.
local replies = {}
local first = 2
while at <= words do
  local name, key, last = plan[at], KEYS[tonumber(plan[at + 1])], first - 1 + tonumber(plan[at + 2])
  local revision = key and changed[key]
  local reply
  if not key then
    reply = redis.call(name, unpack(ARGV, first, last))
  elseif name == 'LINE' then
    reply = line(key, ARGV[first], tonumber(ARGV[first + 1]), tonumber(ARGV[first + 2]))
  elseif revision and name == 'HSET' then
    reply = redis.call(name, key, '#', revision, unpack(ARGV, first, last))
  else
    if revision then
      redis.call('HSET', key, '#', revision)
    end
    reply = redis.call(name, key, unpack(ARGV, first, last))
  end
  if revision then
    changed[key] = nil
  end
  if wanted then
    replies[#replies + 1] = reply
  end
  first = last + 1
  at = at + 3
end
for key, revision in pairs(changed) do
  redis.call('HSET', key, '#', revision)
end
if wanted then
  for place, revision in ipairs(revisions) do
    revisions[place] = revision ~= '-' and revision or ''
  end
  return {1, stamp, revisions, replies}
end
local answer = '1 ' .. stamp .. ' ' .. table.concat(revisions, ' ')
return #answer > LINE_BYTES and answer or {ok = answer}
