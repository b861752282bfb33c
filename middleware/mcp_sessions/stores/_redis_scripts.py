"""The atomic steps of the Redis store, as Lua scripts, and the names of its keys.

All keys of a deployment have one hash tag, hence one slot: each step is one script on a cluster, too. Above each script
stand its keys, then its arguments, then its result. Sources: Redis, "Scripting with Lua", "Cluster specification".
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
# its end (x), end of its lease; and its data: under ':' and a name the value, under '=' and a name when that expires,
# under '#' the bytes and under 'n' the number of all values, under '$' the account (a principal and an audience) that
# they are counted for.

KEEP: Final = """
local function keep(key, ttl)
  if redis.call('TTL', key) < tonumber(ttl) then redis.call('EXPIRE', key, ttl) end
end
"""

# The epoch is the moment since which Redis has lost nothing. If it is missing, Redis lost everything, and it is set to
# now. A replica refuses the attempt to set it; a primary that cannot write at present still answers.
_EPOCH: Final = """
local made = redis.pcall('SET', KEYS[1], ARGV[1], 'NX')
local epoch = redis.call('GET', KEYS[1])
if type(made) == 'table' and made.err and (not epoch or string.find(made.err, 'READONLY', 1, true)) then return made end
"""

# In the index, a session's member follows its audience, and once more its audience and its principal.
_INDEX: Final = """
local function members(audience, member)
  local subject = string.match(member, '%z(.*)$')
  return audience .. '\\0' .. member, audience .. '\\0=' .. subject .. '\\0' .. member, subject
end
local function unlist(index, audience, member)
  local of_all, own = members(audience, member)
  redis.call('ZREM', index, of_all, own)
end
"""

# The bytes that the data of each account takes. `sizes` names the session, its size and its account.
COUNT_USAGE: Final = """
local function add(usage, account, size)
  if redis.call('ZINCRBY', usage, size, account) == '0' then redis.call('ZREM', usage, account) end
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
local function purge(session, ref, index, usage, sizes)
  local r = redis.call('HMGET', session, 'm', 'a', '#', 'n', '$')
  redis.call('DEL', session)
  if r[1] then unlist(index, r[2], r[1]) end
  if r[5] and r[3] then
    uncount(usage, sizes, string.format('%s %d %s', ref, r[3] + VALUE_COST * r[4], r[5]))
  end
end
"""
)

# epoch -> the server's time, or nothing if this user may not ask for it; what INFO says, or '' for the same reason
TIME: Final = Script("local now = redis.pcall('TIME') return now.err and {} or now", allow_oom=True)
INFO: Final = Script("""
local info = redis.pcall('INFO', 'persistence', 'memory')
return type(info) == 'table' and '' or info
""")

_REGISTER_AT_EPOCH: Final = f"""
if not (tonumber(epoch) + {TICK!r} <= tonumber(ARGV[2])) then
  redis.call('SET', KEYS[2], epoch, 'EX', ARGV[3])
end
"""

# epoch registered; moment created ttl -> epoch
REGISTER_AT_EPOCH: Final = Script(_EPOCH, _REGISTER_AT_EPOCH, "return {epoch}")

# epoch registered ended session cutoff due index;
# moment created ttl ttl-while-recorded member audience max due-at {field value}... -> epoch, 0 for too many
REGISTER: Final = Script(
    _EPOCH,
    KEEP,
    _INDEX,
    _REGISTER_AT_EPOCH,
    """
local ended, session, cutoff, due, index = unpack(KEYS, 3)
local ttl, member, audience, max = ARGV[4], ARGV[5], ARGV[6], ARGV[7]
if redis.call('EXISTS', ended) == 1 or redis.call('HEXISTS', session, 'm') == 1 then return {epoch, 1} end
local of_all, own, subject = members(audience, member)
if max ~= '' then
  local from = string.format('%015.0f', tonumber(redis.call('GET', cutoff) or 0) * 1000)
  local prefix = audience .. '\\0=' .. subject .. '\\0'
  if redis.call('ZLEXCOUNT', index, '[' .. prefix .. from, '(' .. prefix .. ':') >= tonumber(max) then
    return {epoch, 0}
  end
end
redis.call('HSET', session, 'm', member, 'a', audience, unpack(ARGV, 9))
redis.call('ZADD', due, ARGV[8], member)
redis.call('ZADD', index, 0, of_all, 0, own)
for _, key in ipairs({session, due, index}) do keep(key, ttl) end
return {epoch, 1}
""",
)

# epoch {ended registered session due cutoff...}...; moment state-or-nothing now-or-nothing touched-by idle-since idle
# {number of cut-offs}... -> epoch, and of each session: whether it ended, the epoch it was registered at, its last use
# before this one, why it ended, its state, when that ends, and its cut-offs
LOOK_UP: Final = Script(
    _EPOCH,
    """
local with_state, now, touched_by, idle_since, idle = ARGV[2] ~= '', ARGV[3], unpack(ARGV, 4, 6)
local function touch(session, due, seen)
  if not (seen and seen <= tonumber(touched_by) and tonumber(idle_since) < seen) then return end
  local r = redis.call('HMGET', session, 'm', 'e')
  redis.call('HSET', session, 's', now)
  redis.call('ZADD', due, math.min(tonumber(r[2]), tonumber(now) + tonumber(idle)), r[1])
end
local all, place = {epoch}, 2
for i = 7, #ARGV do
  local ended, registered, session, due = unpack(KEYS, place, place + 3)
  local r = redis.call('HMGET', session, 's', 'x', with_state and ':' or '', with_state and '=' or '')
  local found = {redis.call('GET', ended), redis.call('GET', registered), unpack(r, 1, 4)}
  for cutoff = place + 4, place + 3 + ARGV[i] do found[#found + 1] = redis.call('GET', KEYS[cutoff]) end
  if now ~= '' and not (found[1] or r[2]) then touch(session, due, tonumber(r[1] or '')) end
  all[#all + 1], place = found, place + 4 + ARGV[i]
end
return all
""",
)

# ended session due index usage sizes; mark ttl reason lease-until-or-nothing member ref
# -> 1 if this call, known by its mark, ended it; without a lease it is purged
REVOKE: Final = Script(
    _PURGE,
    """
local ended, session, due, index, usage, sizes = unpack(KEYS)
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
  purge(session, ref, index, usage, sizes)
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

# epoch cutoff {session ended registered cutoff}...; moment -> the first two, and of each the record, its reason and the
# other three
RECORDS: Final = Script(
    _EPOCH,
    """
local all = {epoch, redis.call('GET', KEYS[2])}
for i = 3, #KEYS, 4 do
  local found = redis.call('HMGET', KEYS[i], 'm', 'e', 's', 'a', 't', 'p', 'x')
  for j, fact in ipairs(redis.call('MGET', KEYS[i + 1], KEYS[i + 2], KEYS[i + 3])) do found[7 + j] = fact end
  all[#all + 1] = found
end
return all
""",
)

# due; now count latest -> members, also those that are due later than the idle timeout permits: they were last used
# under a longer one
DUE: Final = Script("""
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])
local later = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. ARGV[3], '+inf', 'LIMIT', 0, 500)
for _, member in ipairs(later) do due[#due + 1] = member end
return due
""")

# due index {session ended}...; now idle-or-nothing lease leeway audience {member}...
# -> of each that has ended and is not claimed: its record and its reason. The others get the moment when they are due.
CLAIM: Final = Script(
    _INDEX,
    """
local due, index = KEYS[1], KEYS[2]
local now, idle, lease, leeway = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local function claim(session, ended, member)
  local r = redis.call('HMGET', session, 'm', 'e', 's', 'a', 't', 'p', 'x', 'l')
  if not r[1] then
    redis.call('ZREM', due, member)
    return unlist(index, ARGV[5], member)
  end
  local ends, idle_at = tonumber(r[2]), idle and tonumber(r[3]) + idle or math.huge
  local due_at = r[7] and tonumber(r[8]) or math.min(ends, idle_at)
  if now < due_at then
    redis.call('ZADD', due, due_at, member)
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
local claimed = {}
for i = 6, #ARGV do claimed[#claimed + 1] = claim(KEYS[2 * i - 9], KEYS[2 * i - 8], ARGV[i]) end
return claimed
""",
    allow_oom=True,
)

# index usage sizes {session}...; {ref}...
PURGE: Final = Script(
    _PURGE, "for i, ref in ipairs(ARGV) do purge(KEYS[3 + i], ref, unpack(KEYS, 1, 3)) end return 1", allow_oom=True
)


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
    """Return the bounds of the index after a position: of a principal's sessions, or of all (None)."""
    prefix = f"{audience}\0" if subject is None else f"{audience}\0={subject}\0"
    # "\1" sorts after the NUL that follows a session's name, so the session at this position is left out.
    return f"({prefix}{_at(max(after[0], 0))}{after[1]}" + "\1" * bool(after[1]), f"({prefix}:"


class Keys:
    """The names under which one deployment keeps its sessions, all with one hash tag.

    There are those of a session (`ended`, whose value names the call that ended it, `registered`, `session`), those of
    an audience (`due`, the recorded sessions by when to look at them next, and `cutoff`), and those of all sessions.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.epoch = self("epoch", "6")  # with the number of the format
        self.index, self.usage, self.sizes = self("index"), self("usage"), self("sizes")
        self.of_all_sessions = [self.index, self.usage, self.sizes]

    def __call__(self, *parts: str) -> str:
        return f"{{{self._prefix}}}{':'.join(parts)}"

    def cutoff(self, audience: str, subject: str | None = None) -> str:
        return self("cutoff", audience, subject or "")
