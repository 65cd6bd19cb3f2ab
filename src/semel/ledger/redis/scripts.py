"""The ledger's rules as Lua, for Redis and Valkey: each operation is one script over any number of keys.

The rule: a script reads the clock once, decides each key from one HMGET and changes it with one HSET. KEYS has all keys
of the call. ARGV[1] is a JSON list. Its first item is the time in milliseconds since 1970 (in tests), or 0 for the
server's own clock. Binary values follow it as further arguments, unencoded.

A key is a hash: h head, c claimant, p payload, o source, r result, n notes (MessagePack: name, value, name, value, …).
The head is one line, because a script that reads and writes few fields is fast. It has the status (F free, C claimed, D
done, R rejected), the fence, the attempt, the number of notes, and the times when the lease ends, when the key was
first seen, when it was changed and when it expires, in milliseconds since 1970 by the server's clock.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True)
class Script:
    text: bytes
    digest: bytes = field(init=False)

    def __post_init__(self) -> None:
        # Redis names scripts by their SHA-1. No security depends on it.
        digest = hashlib.sha1(self.text, usedforsecurity=False).hexdigest().encode()
        object.__setattr__(self, "digest", digest)


# An expired key counts as absent, but its fence must go on growing. So the server keeps the key for a while longer: for
# as long again as it was kept, at most for the longest lease.
_START: Final = """
local said = {}
local words = cjson.decode(ARGV[1])
local clock = redis.call('TIME')
local now = words[1] > 0 and words[1] or clock[1] * 1000 + math.floor(clock[2] / 1000)
local FREE, CLAIMED, DONE, REJECTED = 'F', 'C', 'D', 'R'
local format, match = string.format, string.match
local function text(number) return format('%.0f', number) end
local NOW = text(now)
local function read(head)
  if not head then return false, '0', '0', '0', '0', NOW end
  local status, fence, attempt, noted, ends, seen, expires =
    match(head, '^(%a) (%d+) (%d+) (%d+) (%d+) (%d+) %d+ (%d+)$')
  return tonumber(expires) > now and status, fence, attempt, noted, ends, seen
end
local function head(status, fence, attempt, noted, ends, seen, expires)
  return status .. ' ' .. fence .. ' ' .. attempt .. ' ' .. noted .. ' ' .. ends .. ' ' .. seen .. ' ' .. NOW ..
    ' ' .. expires
end
local function stay(key, retention)
  redis.call('PEXPIRE', key, text(retention + math.min(retention, 43200000)))
end
"""

# Words: time, retention, lease, claimant, then for each key: payload, source.
# Answer: four numbers for each key in one string, then the results and notes that they refer to. The numbers:
#   1 fence attempt notes: won    2 fence attempt notes: taken over    3 0 0 0: done    4 0 0 0: rejected
#   5 milliseconds 0 0: held      6 0 0 0: conflict                    7 0 0 0: conflict with a recorded one
_CLAIM: Final = """
local retention, lease, claimant = words[2], words[3], words[4]
local stays = math.max(retention, lease)
local ends, expires = text(now + lease), text(now + stays)
local lasts = text(stays + math.min(stays, 43200000))
local blobs, mine = {}, {}
local function say(what, a, b, c)
  local n = #said
  said[n + 1], said[n + 2], said[n + 3], said[n + 4] = what, a, b, c
end
local function win(key, what, fence, attempt, notes, seen, payload, source)
  notes = notes and cmsgpack.unpack(notes) or {}
  redis.call('HSET', key, 'h', head(CLAIMED, fence, attempt, #notes / 2, ends, seen, expires),
    'c', claimant, 'p', payload, 'o', source)
  redis.call('PEXPIRE', key, lasts)
  mine[key] = true
  say(what, fence, attempt, #notes / 2)
  for _, part in ipairs(notes) do blobs[#blobs + 1] = part end
end
local function win_as_new(key, row, fence, seen, payload, source)
  if row[1] then redis.call('HDEL', key, 'r', 'n') end
  win(key, 1, fence, 1, false, seen, payload, source)
end
for i, key in ipairs(KEYS) do
  local payload, source = words[2 * i + 3], words[2 * i + 4]
  local row = redis.call('HMGET', key, 'h', 'c', 'p', 'o', 'r', 'n')
  local status, fence, attempt, _, held_until, seen = read(row[1])
  local known = row[3] or ''
  if not status then
    win_as_new(key, row, fence + 1, NOW, payload, source)
  elseif status == REJECTED then
    if source == row[4] then
      say(4, 0, 0, 0)
      blobs[#blobs + 1] = row[5] or ''
    else
      win_as_new(key, row, fence + 1, seen, payload, source)
    end
  elseif payload ~= '' and known ~= '' and payload ~= known then
    say(status == DONE and 7 or 6, 0, 0, 0)
  elseif status == DONE then
    say(3, 0, 0, 0)
    blobs[#blobs + 1] = row[5] or ''
  else
    if known ~= '' then payload = known end
    if status == FREE then
      win(key, 1, fence + 1, attempt + 1, row[6], seen, payload, source)
    elseif row[2] == claimant and not mine[key] then
      win(key, 1, fence, attempt, row[6], seen, payload, source)
    elseif tonumber(held_until) > now then
      say(5, held_until - now, 0, 0)
    else
      win(key, 2, fence + 1, attempt + 1, row[6], seen, payload, source)
    end
  end
end
table.insert(blobs, 1, table.concat(said, ' '))
return blobs
"""

# Words: time, retention, lease, then for each key: fence. Answer, also of the scripts below if they do not say
# otherwise: a 1 or 0 for each key, in one string.
_EXTEND: Final = """
local lease = words[3]
local stays = math.max(words[2], lease)
for i, key in ipairs(KEYS) do
  local status, fence, attempt, noted, _, seen = read(redis.call('HGET', key, 'h'))
  local held = status == CLAIMED and tonumber(fence) == words[i + 3]
  if held then
    redis.call('HSET', key, 'h', head(CLAIMED, fence, attempt, noted, text(now + lease), seen, text(now + stays)))
    stay(key, stays)
  end
  said[i] = held and 1 or 0
end
return table.concat(said)
"""

# Words: time, then for each key: fence, status, retention. Bytes: for each key its result.
_RECORD: Final = """
for i, key in ipairs(KEYS) do
  local asked, outcome, retention = words[3 * i - 1], words[3 * i], words[3 * i + 1]
  local status, fence, attempt, noted, ends, seen = read(redis.call('HGET', key, 'h'))
  local held = status == CLAIMED and tonumber(fence) == asked
  if held then
    local line, result = head(outcome, fence, attempt, 0, ends, seen, text(now + retention)), ARGV[i + 1]
    if result == '' then
      redis.call('HSET', key, 'h', line)
    else
      redis.call('HSET', key, 'h', line, 'r', result)
    end
    if noted ~= '0' then redis.call('HDEL', key, 'n') end
    stay(key, retention)
  end
  said[i] = (held or status == outcome and tonumber(fence) == asked) and 1 or 0
end
return table.concat(said)
"""

# Words: time, retention, 1 to take the attempt back or 0, then for each key: fence.
_RELEASE: Final = """
local retention = words[2]
for i, key in ipairs(KEYS) do
  local status, fence, attempt, noted, _, seen = read(redis.call('HGET', key, 'h'))
  local held = status == CLAIMED and tonumber(fence) == words[i + 3]
  if held then
    redis.call('HSET', key, 'h', head(FREE, fence, attempt - words[3], noted, 0, seen, text(now + retention)), 'c', '')
    stay(key, retention)
  end
  said[i] = held and 1 or 0
end
return table.concat(said)
"""

# Words: time, retention, the maximum size of all notes in bytes, fence, name. Bytes: the value.
# Answer: 1 made, 0 refused, 2 too large.
_NOTE: Final = """
local key, name, value = KEYS[1], words[5], ARGV[2]
local row = redis.call('HMGET', key, 'h', 'n')
local status, fence, attempt, _, ends, seen = read(row[1])
if status ~= CLAIMED or tonumber(fence) ~= words[4] then return '0' end
local notes, size, known = row[2] and cmsgpack.unpack(row[2]) or {}, 0, false
for i = 1, #notes, 2 do
  if notes[i] == name then
    notes[i + 1] = value
    known = true
  end
  size = size + #notes[i + 1]
end
if not known then
  notes[#notes + 1] = name
  notes[#notes + 1] = value
  size = size + #value
end
if size > words[3] then return '2' end
local stays = math.max(words[2], ends - now)
local line = head(CLAIMED, fence, attempt, #notes / 2, ends, seen, text(now + stays))
redis.call('HSET', key, 'h', line, 'n', cmsgpack.pack(notes))
stay(key, stays)
return '1'
"""

# Words: time, retention.
_FORGET: Final = """
local retention = words[2]
for i, key in ipairs(KEYS) do
  local status, fence, _, _, _, seen = read(redis.call('HGET', key, 'h'))
  if status then
    redis.call('HSET', key, 'h', head(FREE, fence, 0, 0, 0, seen, text(now + retention)), 'c', '', 'p', '', 'o', '')
    redis.call('HDEL', key, 'r', 'n')
    stay(key, retention)
  end
  said[i] = status and 1 or 0
end
return table.concat(said)
"""

# Words: time. Answer: for each key nil, or head, claimant, payload, source, result, list of notes.
_LOOK: Final = """
for i, key in ipairs(KEYS) do
  local row = redis.call('HMGET', key, 'h', 'c', 'p', 'o', 'r', 'n')
  said[i] = false
  if read(row[1]) then
    row[6] = row[6] and cmsgpack.unpack(row[6]) or {}
    said[i] = row
  end
end
return said
"""


def _script(text: str) -> Script:
    return Script((_START + text).encode())


CLAIM: Final = _script(_CLAIM)
EXTEND: Final = _script(_EXTEND)
RECORD: Final = _script(_RECORD)
RELEASE: Final = _script(_RELEASE)
NOTE: Final = _script(_NOTE)
FORGET: Final = _script(_FORGET)
LOOK: Final = _script(_LOOK)
