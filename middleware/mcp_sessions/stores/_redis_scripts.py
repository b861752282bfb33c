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


def even_full(source: str) -> Script:
    """Make a script that a full Redis runs, too: the sweeper needs a little memory before it frees more."""
    return Script("#!lua flags=allow-oom" + source)


def in_full(command: Command) -> Command:
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

# ended session; mark ttl reason lease-until -> 1 where this call (known by its mark) ended it, and the record's lease
REVOKE: Final = Script("""
local mark = redis.call('GET', KEYS[1])
if not mark then
  mark = ARGV[1]
  if redis.call('EXISTS', KEYS[2]) == 1 then
    if redis.call('HSETNX', KEYS[2], 'x', ARGV[3]) == 0 then mark = '0'
    else redis.call('HSET', KEYS[2], 'l', ARGV[4]) end
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

# since servers old-since; moment remembered {server run keeps}... -> the moment since which nothing was forgotten
EPOCH: Final = even_full("""
local since, lost = redis.call('GET', KEYS[1]) or redis.call('GET', KEYS[3]), false
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

# ended session; ttl created expires seen audience subject trace parts (each of the last three may be nothing)
REGISTER: Final = Script("""
if redis.call('EXISTS', KEYS[1], KEYS[2]) > 0 then return 0 end
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

# ended session; now idle resolution -> live, ended, idle or lost
TOUCH: Final = Script("""
local record = redis.call('HMGET', KEYS[2], 's', 'x')
if record[2] or redis.call('EXISTS', KEYS[1]) == 1 then return 'ended' end
if not record[1] then return 'lost' end
local now, seen, resolution = tonumber(ARGV[1]), tonumber(record[1]), tonumber(ARGV[3])
if ARGV[2] ~= '' and not (now < seen + tonumber(ARGV[2]) + resolution) then return 'idle' end
if now >= seen + resolution then redis.call('HSET', KEYS[2], 's', ARGV[1]) end
return 'live'
""")

# due; now from count -> ref, score, ref, score ...
DUE: Final = Script("""
return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'WITHSCORES', 'LIMIT', ARGV[2], ARGV[3])
""")

# {ended session}...; now idle resolution lease leeway
# -> of each: gone | later, when | taken, when, fields..., reason; by NULs
CLAIM: Final = even_full("""
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
POSTPONE: Final = even_full("""
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

# sweeper; worker until now milliseconds -> 1 where it leads
ELECT: Final = even_full("""
local held = redis.call('GET', KEYS[1])
if held then
  local ends, worker = string.match(held, '^(%S+) (.*)$')
  if worker ~= ARGV[1] and tonumber(ARGV[3]) < tonumber(ends) then return 0 end
end
redis.call('SET', KEYS[1], ARGV[2] .. ' ' .. ARGV[1], 'PX', ARGV[4])
return 1
""")


def record_of(ref: str, *fields: bytes) -> Record:
    """Return a record from its fields, all but the last."""
    created, expires, seen, *texts, audience = fields
    subject, trace, parts = (text.decode() if text else None for text in texts)
    return Record(ref, subject, float(created), int(expires), int(float(seen)), trace, audience.decode(), parts)


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
        # With the number of the format. What the second kept is read here as it was, so its epoch holds on.
        self.since: str = f"{prefix}{{all}}:since:3"
        self.since_second: str = f"{prefix}{{all}}:since:2"
        self.servers: str = f"{prefix}{{all}}:servers"

    def data_keys(self, ref: str) -> tuple[str, ...]:
        return tuple(f"{self._prefix}{{{ref}}}:{part}" for part in ("ended", "session", "data", "times"))

    def session_keys(self, ref: str) -> tuple[str, ...]:
        """Return the keys of a revocation, whose value names its call, and of a record."""
        return self.data_keys(ref)[:2]

    def account(self, name: str) -> tuple[str, str]:
        """Return the keys of what the data of a principal's sessions takes, and of when each is over."""
        return f"{self._prefix}{{{name}}}:account", f"{self._prefix}{{{name}}}:account-ends"

    def all(self, part: str) -> str:
        """Return the pattern of the keys of one kind."""
        prefix = "".join(f"[{letter}]" if letter in "*?[\\^" else letter for letter in self._prefix)
        return f"{prefix}{{*}}:{part}"

    def admitted(self, ref: str) -> str:
        return f"{self._prefix}{{{ref}}}:admitted"

    def due(self, audience: str) -> str:
        return f"{self._prefix}{{all}}:due:{audience}"

    def sweeper(self, audience: str) -> str:
        return f"{self._prefix}{{all}}:sweeper:{audience}"

    def ended_before(self, audience: str, subject: str | None) -> str:
        return f"{self._prefix}{{{subject or 'all'}}}:ended-before:{audience}"

    def sessions(self, audience: str, subject: str | None) -> tuple[str, str]:
        if subject is None:  # in the slot of the cut-offs of all
            return f"{self._prefix}{{all}}:anonymous-sessions:{audience}", f"{self._prefix}{{all}}:anonymous:{audience}"
        return f"{self._prefix}{{{subject}}}:sessions:{audience}", f"{self._prefix}{{{subject}}}:listed:{audience}"


def listing(keys: Keys, record: Record, entry: tuple[Word, ...], of_subject: int | None) -> list[Command]:
    """Return what lists a record, unless there are as many as there may be."""
    if not record.subject and of_subject is None:
        return []
    names = (*keys.sessions(record.audience, record.subject), keys.ended_before(record.audience, record.subject))
    return [LIST(*names, args=(*entry, of_subject or ""))]


def unlistings(keys: Keys, record: Record) -> list[Command]:
    """Return what takes a record from all lists."""
    due: Command = ("ZREM", keys.due(record.audience), record.ref)
    keys_of = keys.sessions(record.audience, record.subject)
    return [due, *(("ZREM", key, member(*record.position)) for key in keys_of)]
