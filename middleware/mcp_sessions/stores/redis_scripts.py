"""The atomic steps of the Redis store, as Lua scripts: those on a session's end and its record.

Each script touches keys of one hash slot alone, since a cluster runs no other; what spans slots is ordered by
the store so that a crash in between loses nothing. A script reads no clock: the time is an argument. Those on
a session's data are in `redis_data_scripts`.
Source: Redis, "Scripting with Lua" (scripts run as one step).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

Word = str | int | bytes


@dataclass(frozen=True, slots=True)
class Step:
    """One command to Redis.

    Args:
        words: The command and its arguments.
        source: The Lua text of a script, for a server that does not know it yet.
    """

    words: tuple[Word, ...]
    source: str | None = None

    def in_full(self) -> tuple[Word, ...]:
        """The same command with the script's text in place of its digest."""
        assert self.source is not None
        return ("EVAL", self.source, *self.words[2:])


class Script:
    """A Lua script, sent as its digest."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._digest = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()

    def __call__(self, *keys: str, args: tuple[Word, ...] = ()) -> Step:
        return Step(("EVALSHA", self._digest, len(keys), *keys, *args), self._source)


FIELDS: Final = ("c", "e", "s", "u", "r", "t", "a", "x")
"""Of a record: created, expires, seen, subject, root, trace, audience, reason. Under "l": how long `on_end` may run."""

# --- standing and revocation ---------------------------------------------------------------------

# ended session; mark ttl reason lease-until -> 1 where this call (known by its mark) ended it, and the record's lease
REVOKE: Final = Script("""
local mark = redis.call('GET', KEYS[1])
if not mark then
  mark = ARGV[1]
  if redis.call('EXISTS', KEYS[2]) == 1 then
    if redis.call('HSETNX', KEYS[2], 'x', ARGV[3]) == 1 then
      redis.call('HSET', KEYS[2], 'l', ARGV[4])
    else
      mark = '0'
    end
  end
  redis.call('SET', KEYS[1], mark, 'EX', ARGV[2])
end
return {mark == ARGV[1] and 1 or 0, redis.call('HGET', KEYS[2], 'l') or ''}
""")

# ended-before; moment ttl
REVOKE_BEFORE: Final = Script("""
local old = redis.call('GET', KEYS[1])
if not old or tonumber(old) < tonumber(ARGV[1]) then redis.call('SET', KEYS[1], ARGV[1], 'KEEPTTL') end
if redis.call('TTL', KEYS[1]) < tonumber(ARGV[2]) then redis.call('EXPIRE', KEYS[1], ARGV[2]) end
return 1
""")

# since servers; first lost remembered {server run keeps}... -> the moment since which nothing was forgotten
FENCE: Final = Script("""
local since, lost = redis.call('GET', KEYS[1]), false
for i = 4, #ARGV, 3 do
  local known, found = redis.call('HGET', KEYS[2], ARGV[i]), ARGV[i + 1] .. ' ' .. ARGV[i + 2]
  if known and known ~= found then
    local run, kept = string.match(known, '^(%S*) (%S*)$')
    lost = lost or run ~= ARGV[i + 1] and not (kept == '1' and ARGV[i + 2] == '1')
  end
  if known ~= found then redis.call('HSET', KEYS[2], ARGV[i], found) end
end
if not since then
  since = ARGV[1]
  redis.call('SET', KEYS[1], since)
elseif tonumber(since) < tonumber(ARGV[lost and 2 or 3]) then
  since = ARGV[2]
  redis.call('SET', KEYS[1], since)
end
return since
""")

# --- records -------------------------------------------------------------------------------------

# ended session; ttl created expires seen audience subject root trace (each of the last three may be nothing)
RECORD: Final = Script("""
if redis.call('EXISTS', KEYS[1], KEYS[2]) > 0 then return 0 end
redis.call('HSET', KEYS[2], 'c', ARGV[2], 'e', ARGV[3], 's', ARGV[4], 'a', ARGV[5])
for i, field in ipairs({'u', 'r', 't'}) do
  if ARGV[i + 5] ~= '' then redis.call('HSET', KEYS[2], field, ARGV[i + 5]) end
end
redis.call('EXPIRE', KEYS[2], ARGV[1])
return 1
""")

# sessions or forks; now ttl expires ref
LIST: Final = Script("""
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. ARGV[1])
redis.call('ZADD', KEYS[1], ARGV[3], ARGV[4])
if redis.call('TTL', KEYS[1]) < tonumber(ARGV[2]) then redis.call('EXPIRE', KEYS[1], ARGV[2]) end
return 1
""")

# ended session; now idle grain -> live, ended, idle or lost
SEEN: Final = Script("""
local record = redis.call('HMGET', KEYS[2], 's', 'x')
if record[2] or redis.call('EXISTS', KEYS[1]) == 1 then return 'ended' end
if not record[1] then return 'lost' end
local now, seen, grain = tonumber(ARGV[1]), tonumber(record[1]), tonumber(ARGV[3])
if ARGV[2] ~= '' and not (now < seen + tonumber(ARGV[2]) + grain) then return 'idle' end
if now >= seen + grain then redis.call('HSET', KEYS[2], 's', ARGV[1]) end
return 'live'
""")

# due; now from count -> ref, score, ref, score ...
DUE: Final = Script("""
return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'WITHSCORES', 'LIMIT', ARGV[2], ARGV[3])
""")

# ended session; now idle grain lease leeway -> gone | later, when | taken, when, reason, fields...
CLAIM: Final = Script("""
local function text(moment) return string.format('%.3f', moment) end
local r = redis.call('HMGET', KEYS[2], 'c', 'e', 's', 'u', 'x', 'l', 'r', 't', 'a')
if not r[1] then return {'gone'} end
local now, ends, reason = tonumber(ARGV[1]), tonumber(r[2]), r[5]
local idles = ARGV[2] ~= '' and tonumber(r[3]) + tonumber(ARGV[2]) + tonumber(ARGV[3]) or ends
if reason then
  if now < tonumber(r[6]) then return {'later', r[6]} end
elseif not (now < ends) then
  reason = 'expired'
elseif not (now < idles) then
  reason = 'idle'
else
  return {'later', text(math.min(ends, idles))}
end
local lease = text(now + tonumber(ARGV[4]))
redis.call('HSET', KEYS[2], 'x', reason, 'l', lease)
local ttl = math.max(1, math.ceil(ends + tonumber(ARGV[5]) - now))
redis.call('SET', KEYS[1], '0', 'EX', string.format('%d', ttl), 'NX')
return {'taken', lease, reason, r[1], r[2], r[3], r[4] or '', r[7] or '', r[8] or '', r[9]}
""")

# due; {ref old-score new-score-or-nothing}... Only where nobody moved it in between.
PUT_OFF: Final = Script("""
for i = 1, #ARGV, 3 do
  local score = redis.call('ZSCORE', KEYS[1], ARGV[i])
  if score and tonumber(score) == tonumber(ARGV[i + 1]) then
    if ARGV[i + 2] == '' then
      redis.call('ZREM', KEYS[1], ARGV[i])
    else
      redis.call('ZADD', KEYS[1], ARGV[i + 2], ARGV[i])
    end
  end
end
return 1
""")

# ended session data times -> the audience, the subject and the root, each or nothing
FINISH: Final = Script("""
local of = redis.call('HMGET', KEYS[2], 'a', 'u', 'r')
redis.call('DEL', KEYS[2], KEYS[3], KEYS[4])
return {of[1] or '', of[2] or '', of[3] or ''}
""")

# sweeper; worker until now milliseconds -> 1 where it leads
LEAD: Final = Script("""
local held = redis.call('GET', KEYS[1])
if held then
  local ends, worker = string.match(held, '^(%S+) (.*)$')
  if worker ~= ARGV[1] and tonumber(ARGV[3]) < tonumber(ends) then return 0 end
end
redis.call('SET', KEYS[1], ARGV[2] .. ' ' .. ARGV[1], 'PX', ARGV[4])
return 1
""")
