"""The atomic steps of the Redis store, as Lua scripts, and the names of its keys.

Each script touches keys of one hash slot alone, since a cluster runs no other, and reads no clock. Above each stand its
keys, then its arguments. Sources: Redis, "Scripting with Lua", "Cluster specification" (hash tags).
"""

from __future__ import annotations

import hashlib
from typing import Final

from ._base import Record

Word = str | int | bytes
Command = tuple[Word, ...]
DIGITS: Final = 15  # of a session's beginning in a list, in milliseconds
_SOURCES: Final[dict[Word, str]] = {}  # of all scripts, by their digests


class Script:
    """A Lua script, sent as its digest."""

    def __init__(self, source: str) -> None:
        self._digest = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
        _SOURCES[self._digest] = source

    def __call__(self, *keys: str, args: tuple[Word, ...] = ()) -> Command:
        return ("EVALSHA", self._digest, len(keys), *keys, *args)


def allow_oom(source: str) -> Script:
    """Make a script that a full Redis runs, too: the sweeper needs a little memory before it frees more."""
    return Script("#!lua flags=allow-oom" + source)


def with_source(command: Command) -> Command:
    """Return a script's command with its text in place of the digest, for a server that does not know it yet."""
    return ("EVAL", _SOURCES[command[1]], *command[2:])


# A record's fields: created, expires, seen, subject, trace, parts, audience, reason, and the end of its lease.

# {session}... -> of each: its fields from `c` to `a`; nothing where it is gone or has ended; by NULs
RECORDS: Final = Script("""
local all = {}
for i, session in ipairs(KEYS) do
  local r = redis.call('HMGET', session, 'c', 'e', 's', 'u', 't', 'p', 'a', 'x')
  local found = {r[1], r[2], r[3], r[4] or '', r[5] or '', r[6] or '', r[7]}
  all[i] = r[1] and not r[8] and table.concat(found, '\\0') or ''
end
return all
""")

# ended session data times; mark ttl reason lease-until purge-or-nothing -> 1 where this call (known by its mark) ended
# it, the record's lease, and what was purged, as by PURGE
REVOKE: Final = Script("""
local mark, purged = redis.call('GET', KEYS[1]), ''
if not mark then
  mark = ARGV[1]
  if redis.call('EXISTS', KEYS[2]) == 1 then
    if redis.call('HSETNX', KEYS[2], 'x', ARGV[3]) == 0 then mark = '0'
    else redis.call('HSET', KEYS[2], 'l', ARGV[4]) end
  end
  redis.call('SET', KEYS[1], mark, 'EX', ARGV[2])
end
if mark == ARGV[1] and ARGV[5] ~= '' then
  local of, account = redis.call('HMGET', KEYS[2], 'a', 'u', 'c'), redis.call('HGET', KEYS[4], '$')
  redis.call('DEL', KEYS[2], KEYS[3], KEYS[4])
  purged = table.concat({of[1] or '', of[2] or '', of[3] or '', account or ''}, '\\0')
end
return {mark == ARGV[1] and 1 or 0, redis.call('HGET', KEYS[2], 'l') or '', purged}
""")

# ended-before; moment ttl
REVOKE_BEFORE: Final = Script("""
local old = redis.call('GET', KEYS[1])
if not old or tonumber(old) < tonumber(ARGV[1]) then redis.call('SET', KEYS[1], ARGV[1], 'KEEPTTL') end
if redis.call('TTL', KEYS[1]) < tonumber(ARGV[2]) then redis.call('EXPIRE', KEYS[1], ARGV[2]) end
return 1
""")

# epoch servers; moment remembered {server run keeps}... -> the moment since which nothing was forgotten
EPOCH: Final = allow_oom("""
local since, lost = redis.call('GET', KEYS[1]), false
for i = 3, #ARGV, 3 do
  local known, found = redis.call('HGET', KEYS[2], ARGV[i]), ARGV[i + 1] .. ' ' .. ARGV[i + 2]
  if known and known ~= found then
    local run, kept = string.match(known, '^(%S*) (%S*)$')
    lost = lost or run ~= ARGV[i + 1] and not (kept == '1' and ARGV[i + 2] == '1')
  end
  if known ~= found then redis.call('HSET', KEYS[2], ARGV[i], found) end
end
if not since or tonumber(since) < tonumber(lost and ARGV[1] or ARGV[2]) then since = ARGV[1]
elseif lost then since = string.format('%.6f', tonumber(since) + 1e-6) .. string.sub(ARGV[1], -6) end
redis.call('SET', KEYS[1], since)
return since
""")

# ended session; ttl created expires seen audience subject trace principal (the last three may be nothing)
# -> 1 where it is recorded now
REGISTER: Final = Script("""
if redis.call('EXISTS', KEYS[2]) == 1 then return 1 end
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
redis.call('HSET', KEYS[2], 'c', ARGV[2], 'e', ARGV[3], 's', ARGV[4], 'a', ARGV[5])
for i, field in ipairs({'u', 't', 'p'}) do
  if ARGV[i + 5] ~= '' then redis.call('HSET', KEYS[2], field, ARGV[i + 5]) end
end
redis.call('EXPIRE', KEYS[2], ARGV[1])
return 1
""")

# sessions, by their ends and by their beginnings, ended-before or nothing; now ttl expires position limit
LIST: Final = Script("""
for _, old in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(' .. ARGV[1], 'LIMIT', 0, 100)) do
  redis.call('ZREM', KEYS[1], old)
  redis.call('ZREM', KEYS[2], old)
end
if ARGV[5] ~= '' and not redis.call('ZSCORE', KEYS[2], ARGV[4]) then
  local from = KEYS[3] and redis.call('GET', KEYS[3])
  from = from and string.format('[%015.0f', tonumber(from) * 1000) or '-'
  if redis.call('ZLEXCOUNT', KEYS[2], from, '+') >= tonumber(ARGV[5]) then return 0 end
end
redis.call('ZADD', KEYS[1], ARGV[3], ARGV[4])
redis.call('ZADD', KEYS[2], 0, ARGV[4])
for i = 1, 2 do
  if redis.call('TTL', KEYS[i]) < tonumber(ARGV[2]) then redis.call('EXPIRE', KEYS[i], ARGV[2]) end
end
return 1
""")

# session; now touched-by idle-since -> the last use before this one, or nothing, and why it ended, or nothing
TOUCH: Final = Script("""
local record = redis.call('HMGET', KEYS[1], 's', 'x')
local seen = tonumber(record[1] or '')
if seen and not record[2] and seen <= tonumber(ARGV[2]) and tonumber(ARGV[3]) < seen then
  redis.call('HSET', KEYS[1], 's', ARGV[1])
end
return {record[1] or '', record[2] or ''}
""")

# due; now from count latest -> ref, score, ref, score ... What is to be looked at after the latest moment that the idle
# timeout permits was recorded under a longer one: it is looked at now.
DUE: Final = Script("""
if ARGV[4] ~= 'inf' then
  for _, ref in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. ARGV[4], '+inf', 'LIMIT', 0, 500)) do
    redis.call('ZADD', KEYS[1], 'XX', ARGV[1], ref)
  end
end
return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'WITHSCORES', 'LIMIT', ARGV[2], ARGV[3])
""")

# {ended session}...; now idle resolution lease leeway
# -> of each: gone | later, when | taken, when, fields..., reason; by NULs
CLAIM: Final = allow_oom("""
local function text(moment) return string.format('%.3f', moment) end
local function claim(ended, session)
local r = redis.call('HMGET', session, 'c', 'e', 's', 'u', 'x', 'l', 't', 'a', 'p')
if not r[1] then return 'gone' end
local now, ends, reason = tonumber(ARGV[1]), tonumber(r[2]), r[5]
local idles = ARGV[2] ~= '' and tonumber(r[3]) + tonumber(ARGV[2]) + tonumber(ARGV[3]) or ends
if reason then
  if now < tonumber(r[6]) then return 'later\\0' .. r[6] end
elseif not (now < ends) then reason = 'expired'
elseif not (now < idles) then reason = 'idle'
else return 'later\\0' .. text(math.min(ends, idles)) end
local lease = text(now + tonumber(ARGV[4]))
redis.call('HSET', session, 'x', reason, 'l', lease)
local ttl = math.max(1, math.ceil(ends + tonumber(ARGV[5]) - now))
redis.call('SET', ended, '0', 'EX', string.format('%d', ttl), 'NX')
local found = {'taken', lease, r[1], r[2], r[3], r[4] or '', r[7] or '', r[9] or '', r[8], reason}
return table.concat(found, '\\0')
end
local all = {}
for i = 1, #KEYS, 2 do all[#all + 1] = claim(KEYS[i], KEYS[i + 1]) end
return all
""")

# due; {ref old-score new-score-or-nothing}... Only where no other moved it in between.
POSTPONE: Final = allow_oom("""
for i = 1, #ARGV, 3 do
  local score = redis.call('ZSCORE', KEYS[1], ARGV[i])
  if score and tonumber(score) == tonumber(ARGV[i + 1]) then
    if ARGV[i + 2] == '' then redis.call('ZREM', KEYS[1], ARGV[i])
    else redis.call('ZADD', KEYS[1], ARGV[i + 2], ARGV[i]) end
  end
end
return 1
""")

# {session data times}... -> of each: audience, subject, beginning, the data's account, or nothing; by NULs
PURGE: Final = Script("""
local all = {}
for i = 1, #KEYS, 3 do
  local of, account = redis.call('HMGET', KEYS[i], 'a', 'u', 'c'), redis.call('HGET', KEYS[i + 2], '$')
  redis.call('DEL', KEYS[i], KEYS[i + 1], KEYS[i + 2])
  all[#all + 1] = table.concat({of[1] or '', of[2] or '', of[3] or '', account or ''}, '\\0')
end
return all
""")


def record_of(ref: str, *fields: bytes) -> Record:
    """Return a record from its fields, all but the last."""
    created, expires, seen, *texts, audience = fields
    subject, trace, principal_hashes = (text.decode() if text else None for text in texts)
    times = (float(created), int(expires), float(seen))
    return Record(ref, subject, *times, trace, audience.decode(), principal_hashes)


def member(created_at: float, ref: str) -> str:
    """Return a session's entry in a list, which is sorted as text."""
    return f"{round(created_at * 1000):0{DIGITS}}{ref}"


class Keys:
    """The names under which one deployment keeps its sessions.

    Keys of one session share the tag `{ref}`, those of one principal `{subject}`, the rest `{all}`. Lists of sessions
    are sorted by their ends, to be cleaned, and by their positions, to be read in pages; that of the due ones by when
    to look at them next.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.epoch: str = f"{prefix}{{all}}:epoch:4"  # with the number of the format
        self.servers: str = f"{prefix}{{all}}:servers"

    def data_keys(self, ref: str) -> tuple[str, ...]:
        """Return the keys of a session: its revocation, its record, its data and the times of that."""
        return tuple(f"{self._prefix}{{{ref}}}:{part}" for part in ("ended", "session", "data", "times"))

    def ended(self, ref: str) -> str:
        """Return the key of a revocation, whose value names its call."""
        return self.data_keys(ref)[0]

    def account(self, name: str) -> tuple[str, str]:
        """Return the keys of what the data of a principal's sessions takes, and of when each is over."""
        return f"{self._prefix}{{{name}}}:account", f"{self._prefix}{{{name}}}:account-ends"

    def all(self, part: str) -> str:
        """Return the pattern of the keys of one kind."""
        prefix = "".join(f"[{letter}]" if letter in "*?[\\^" else letter for letter in self._prefix)
        return f"{prefix}{{*}}:{part}"

    def registered(self, ref: str) -> str:
        return f"{self._prefix}{{{ref}}}:registered"

    def due(self, audience: str) -> str:
        return f"{self._prefix}{{all}}:due:{audience}"

    def cutoff(self, audience: str, subject: str | None) -> str:
        return f"{self._prefix}{{{subject or 'all'}}}:cutoff:{audience}"

    def lists(self, audience: str, subject: str | None) -> list[tuple[str, str]]:
        """Return the keys of the lists that a session is on: that of all, and that of its principal, or of none."""
        own = f"{{{subject}}}:sessions" if subject else "{all}:anonymous"
        return [
            (f"{self._prefix}{{all}}:recorded:ends:{audience}", self.listed(audience)),
            (f"{self._prefix}{own}:ends:{audience}", f"{self._prefix}{own}:listed:{audience}"),
        ]

    def listed(self, audience: str, subject: str | None = None) -> str:
        """Return the key of the list of all sessions, or of a principal's, in their order."""
        own = f"{{{subject}}}:sessions" if subject else "{all}:recorded"
        return f"{self._prefix}{own}:listed:{audience}"


def listings(keys: Keys, record: Record, entry: tuple[Word, ...], max_sessions: int | None) -> list[Command]:
    """Return what lists a record; the second refuses it where there are as many as there may be."""
    of_all, own = keys.lists(record.audience, record.subject)
    cutoff = keys.cutoff(record.audience, record.subject)
    return [LIST(*of_all, args=(*entry, "")), LIST(*own, cutoff, args=(*entry, max_sessions or ""))]


def index_removals(keys: Keys, audience: str, subject: str | None, created_at: float, ref: str) -> list[Command]:
    """Return what takes a record from all lists."""
    name = member(created_at, ref)
    lists = keys.lists(audience, subject)
    return [("ZREM", keys.due(audience), ref), *(("ZREM", key, name) for pair in lists for key in pair)]
