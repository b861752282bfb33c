"""The atomic steps of the Redis store, as Lua scripts, and the names of its keys.

All keys of a deployment have one hash tag, hence one slot: each step is one script on a cluster, too. Scripts are told
the time. Above each stand its keys, then its arguments. Sources: Redis, "Scripting with Lua", "Cluster specification".
"""

from __future__ import annotations

import hashlib
from typing import Final

from ._base import VALUE_COST, Record

Word = str | int | float | bytes
_DIGITS: Final = 15  # of a session's beginning in the index, in milliseconds
TICK: Final = 1e-6  # seconds by which a session must be younger than the epoch


class Script:
    """A Lua script, sent as its digest; `allow_oom` runs it on a full Redis, for steps that free memory later."""

    def __init__(self, *sources: str, allow_oom: bool = False) -> None:
        self.source = "#!lua flags=allow-oom\n" * allow_oom + "".join(sources)
        self.digest = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()


# A session's hash holds the fields of its record: member, expires, seen, audience, trace, principal hashes, reason of
# its end (x), end of its lease; and its data: under ':' and a name the value, under '=' and a name when that is over,
# under '#' the bytes and under 'n' the number of all values, under '$' the account (a principal and an audience) that
# they are counted for.

KEEP: Final = """
local function keep(key, ttl)
  if redis.call('TTL', key) < tonumber(ttl) then redis.call('EXPIRE', key, ttl) end
end
"""

# Every index member is the audience and a session's member; that among a principal's has the principal in between.
_INDEX: Final = """
local function members(audience, member)
  local subject = string.match(member, '%z(.*)$')
  return audience .. '\\0' .. member, audience .. '\\0=' .. subject .. '\\0' .. member, subject
end
local function unlist(index, principals, audience, member)
  local of_all, own, subject = members(audience, member)
  local account = subject .. ' ' .. audience
  if redis.call('ZREM', index, of_all, own) > 0 and redis.call('ZINCRBY', principals, -1, account) == '0' then
    redis.call('ZREM', principals, account)
  end
end
"""

# What the data of each account takes: '*' is the sum of all. `sizes` names the session, its size and its account.
COUNT_USAGE: Final = """
local function add(usage, account, size)
  for _, name in ipairs({account, '*'}) do
    if redis.call('ZINCRBY', usage, size, name) == '0' then redis.call('ZREM', usage, name) end
  end
end
local function uncount(usage, sizes, entry)
  local size, account = string.match(entry, '^%S+ (%d+) (.*)$')
  if redis.call('ZREM', sizes, entry) == 1 then add(usage, account, -size) end
end
"""

_PURGE: Final = (
    f"local VALUE_COST = {VALUE_COST}"
    + _INDEX
    + COUNT_USAGE
    + """
local function purge(session, ref, index, principals, usage, sizes)
  local r = redis.call('HMGET', session, 'm', 'a', '#', 'n', '$')
  redis.call('DEL', session)
  if r[1] then unlist(index, principals, r[2], r[1]) end
  if r[5] and r[3] then
    uncount(usage, sizes, string.format('%s %d %s', ref, r[3] + VALUE_COST * r[4], r[5]))
  end
end
"""
)

# due -> the server's time, or nothing where this user may not ask for it
TIME: Final = Script("local now = redis.pcall('TIME') return now.err and {} or now", allow_oom=True)

# epoch servers; moment remembered {server run keeps}... -> since when nothing was forgotten, and 1 for a loss
EPOCH: Final = Script(
    """
local since, lost = redis.call('GET', KEYS[1]), false
for i = 3, #ARGV, 3 do
  local known, found = redis.call('HGET', KEYS[2], ARGV[i]), ARGV[i + 1] .. ' ' .. ARGV[i + 2]
  if known and known ~= found then
    local run, kept = string.match(known, '^(%S*) (%S*)$')
    lost = lost or run ~= ARGV[i + 1] and not (kept == '1' and ARGV[i + 2] == '1')
  end
  if known ~= found then redis.call('HSET', KEYS[2], ARGV[i], found) end
end
lost = lost or tonumber(since or 0) < tonumber(ARGV[2])
if not since or tonumber(since) < tonumber(lost and ARGV[1] or ARGV[2]) then since = ARGV[1]
elseif lost then since = string.format('%.6f', tonumber(since) + 1e-6) .. string.sub(ARGV[1], -6) end
redis.call('SET', KEYS[1], since)
return {since, lost and 1 or 0}
""",
    allow_oom=True,
)

_REGISTER_AT_EPOCH: Final = f"""
local epoch = redis.call('GET', KEYS[1])
if epoch and not (tonumber(epoch) + {TICK!r} <= tonumber(ARGV[1])) then
  redis.call('SET', KEYS[2], epoch, 'EX', ARGV[2])
end
"""

# epoch registered; created ttl -> epoch
REGISTER_AT_EPOCH: Final = Script(_REGISTER_AT_EPOCH, "return {epoch}")

# epoch registered ended session cutoff due index principals;
# created ttl ttl-while-recorded member audience max look {field value}... -> epoch, and 0 where there are too many
REGISTER: Final = Script(
    KEEP,
    _INDEX,
    _REGISTER_AT_EPOCH,
    """
local ended, session, cutoff, due, index, principals = unpack(KEYS, 3)
local ttl, member, audience, max = ARGV[3], ARGV[4], ARGV[5], ARGV[6]
if redis.call('EXISTS', ended) == 1 or redis.call('HEXISTS', session, 'm') == 1 then return {epoch, 1} end
local of_all, own, subject = members(audience, member)
if max ~= '' then
  local from = string.format('%015.0f', tonumber(redis.call('GET', cutoff) or 0) * 1000)
  local prefix = audience .. '\\0=' .. subject .. '\\0'
  if redis.call('ZLEXCOUNT', index, '[' .. prefix .. from, '(' .. prefix .. ':') >= tonumber(max) then
    return {epoch, 0}
  end
end
redis.call('HSET', session, 'm', member, 'a', audience, unpack(ARGV, 8))
redis.call('ZADD', due, ARGV[7], member)
redis.call('ZADD', index, 0, of_all, 0, own)
redis.call('ZINCRBY', principals, 1, subject .. ' ' .. audience)
for _, key in ipairs({session, due, index, principals}) do keep(key, ttl) end
return {epoch, 1}
""",
)

# epoch ended registered cutoff cutoff session cutoffs...; now touched-by idle-since
# -> the first five, the last use before this one, why it ended, and the further cut-offs
TOUCH: Final = Script("""
local found = redis.call('MGET', unpack(KEYS, 1, 5))
local record = redis.call('HMGET', KEYS[6], 's', 'x')
local seen = tonumber(record[1] or '')
if seen and not record[2] and seen <= tonumber(ARGV[2]) and tonumber(ARGV[3]) < seen then
  redis.call('HSET', KEYS[6], 's', ARGV[1])
end
found[6], found[7] = record[1], record[2]
for place = 7, #KEYS do found[place + 1] = redis.call('GET', KEYS[place]) end
return found
""")

# ended session due index principals usage sizes; mark ttl reason lease-until-or-nothing member ref
# -> 1 where this call, known by its mark, ended it; without a lease it is purged
REVOKE: Final = Script(
    _PURGE,
    """
local ended, session, due, index, principals, usage, sizes = unpack(KEYS)
local mark, ttl, reason, lease, member, ref = unpack(ARGV)
local found = redis.call('GET', ended)
if not found then
  found = mark
  if redis.call('HEXISTS', session, 'm') == 1 then
    if redis.call('HSETNX', session, 'x', reason) == 0 then found = '0'
    elseif lease ~= '' then
      redis.call('HSET', session, 'l', lease)
      redis.call('ZADD', due, lease, member)
    end
  end
  redis.call('SET', ended, found, 'EX', ttl)
end
if found ~= mark then return 0 end
if lease == '' then
  redis.call('ZREM', due, member)
  purge(session, ref, index, principals, usage, sizes)
end
return 1
""",
)

# cutoff; moment ttl
REVOKE_BEFORE: Final = Script(
    KEEP,
    """
local old = redis.call('GET', KEYS[1])
if not old or tonumber(old) < tonumber(ARGV[1]) then redis.call('SET', KEYS[1], ARGV[1], 'KEEPTTL') end
keep(KEYS[1], ARGV[2])
return 1
""",
)

# epoch cutoff {session ended registered cutoff}... -> those two, and of each the record, its reason and the other three
RECORDS: Final = Script("""
local all = redis.call('MGET', KEYS[1], KEYS[2])
for i = 3, #KEYS, 4 do
  local found = redis.call('HMGET', KEYS[i], 'm', 'e', 's', 'a', 't', 'p', 'x')
  for j, fact in ipairs(redis.call('MGET', KEYS[i + 1], KEYS[i + 2], KEYS[i + 3])) do found[7 + j] = fact end
  all[#all + 1] = found
end
return all
""")

# due; now count latest -> members. What is to be looked at after the latest moment that the idle timeout permits was
# recorded under a longer one: it is looked at now.
DUE: Final = Script(
    """
if ARGV[3] ~= 'inf' then
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. ARGV[3], '+inf', 'LIMIT', 0, 500)) do
    redis.call('ZADD', KEYS[1], ARGV[1], member)
  end
end
return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])
""",
    allow_oom=True,
)

# due index principals {session ended}...; now idle-or-nothing lease leeway audience {member}...
# -> of each that has ended and is not claimed: its record and its reason. All others are to be looked at later.
CLAIM: Final = Script(
    _INDEX,
    """
local due, index, principals = unpack(KEYS, 1, 3)
local now, idle, lease, leeway = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local function claim(session, ended, member)
  local r = redis.call('HMGET', session, 'm', 'e', 's', 'a', 't', 'p', 'x', 'l')
  if not r[1] then
    redis.call('ZREM', due, member)
    return unlist(index, principals, ARGV[5], member)
  end
  local ends, over = tonumber(r[2]), idle and tonumber(r[3]) + idle or math.huge
  local later = r[7] and tonumber(r[8]) or math.min(ends, over)
  if now < later then
    redis.call('ZADD', due, later, member)
    return
  end
  r[7] = r[7] or (now < ends and 'idle' or 'expired')
  redis.call('HSET', session, 'x', r[7], 'l', now + lease)
  redis.call('ZADD', due, now + lease, member)
  local ttl = math.max(1, math.ceil(ends + leeway - now))
  redis.call('SET', ended, '0', 'EX', string.format('%d', ttl), 'NX')
  r[8] = nil
  return r
end
local taken = {}
for i = 6, #ARGV do taken[#taken + 1] = claim(KEYS[2 * i - 8], KEYS[2 * i - 7], ARGV[i]) end
return taken
""",
    allow_oom=True,
)

# index principals usage sizes {session}...; {ref}...
PURGE: Final = Script(
    _PURGE, "for i, ref in ipairs(ARGV) do purge(KEYS[4 + i], ref, unpack(KEYS, 1, 4)) end return 1", allow_oom=True
)

# index principals usage -> recorded sessions, the most of one principal, the bytes of data, the most of one principal
USAGE: Final = Script("""
local sessions = redis.call('ZRANGE', KEYS[2], 0, 0, 'REV', 'WITHSCORES')
local sizes = redis.call('ZRANGE', KEYS[3], 0, 1, 'REV', 'WITHSCORES')
local most = {sessions[2] or 0, sizes[2] or 0, sizes[4] or 0}
return {redis.call('ZCARD', KEYS[1]) / 2, tonumber(most[1]), tonumber(most[2]), tonumber(most[3])}
""")


def member_of(record: Record) -> str:
    """Return a session's name in lists, which are sorted as text."""
    return f"{_at(record.created_at)}{record.ref}\0{record.subject or ''}"


def listed(name: bytes) -> tuple[float, str, str | None]:
    """Return what a name in a list holds: when the session began, its `ref` and its subject."""
    *_, session, subject = name.split(b"\0")
    return int(session[:_DIGITS]) / 1000, session[_DIGITS:].decode(), subject.decode() or None


def record_of(member: bytes, expires: bytes, seen: bytes, audience: bytes, *texts: bytes | None) -> Record:
    """Return a record from its fields."""
    (created_at, ref, subject), times = listed(member), (int(expires), float(seen))
    trace, principal_hashes = (None if text is None else text.decode() for text in texts)
    return Record(ref, subject, created_at, *times, trace, audience.decode(), principal_hashes)


def _at(moment: float) -> str:
    return f"{round(moment * 1000):0{_DIGITS}}"


def index_range(audience: str, subject: str | None, after: tuple[float, str]) -> tuple[str, str]:
    """Return the first and the last that may be in a list, of all sessions or of a principal, after a position."""
    prefix = f"{audience}\0" if subject is None else f"{audience}\0={subject}\0"
    # A session that began then is after its own position, but for what follows its name.
    return f"({prefix}{_at(max(after[0], 0))}{after[1]}" + "\1" * bool(after[1]), f"({prefix}:"


class Keys:
    """The names under which one deployment keeps its sessions, all with one hash tag.

    There are those of a session (`ended`, whose value names the call that ended it, `registered`, `session`), those of
    an audience (`due`, the sessions by when to look at them next, and `cutoff`), and those of all.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.epoch = self("epoch", "6")  # with the number of the format
        self.servers = self("servers")
        self.index, self.principals = self("index"), self("principals")
        self.usage, self.sizes = self("usage"), self("sizes")
        self.of_all_sessions = [self.index, self.principals, self.usage, self.sizes]

    def __call__(self, *parts: str) -> str:
        return f"{{{self._prefix}}}{':'.join(parts)}"

    def cutoff(self, audience: str, subject: str | None = None) -> str:
        return self("cutoff", audience, subject or "")
