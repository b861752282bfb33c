"""Session data in Redis, and what the data of one principal takes in all.

Each change is one script on the slot of its session. The account of its principal lies in another slot: it is asked
for the room that is left before a change, and is given the session's new size after it, with a number that only grows.
So a change that meets others in the same moment may exceed the limit by its own size, and nothing is counted twice.
"""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from .._errors import DataError, DataGone, DataNotInteger, DataTooLarge, StoreUnavailable
from .._session.data import Namespace
from ._base import INT64, VALUE_COST, StoreUsage, check_principal
from ._redis_connection import RedisConnection
from ._redis_scripts import Command, Keys, Script, Word, allow_oom

KNOWN: Final = 10_000  # accounts whose size one worker remembers
_FRESH: Final = 1.0  # seconds for which the size of an account that is not half full is taken for what it was
_SCANNED: Final = 1000  # keys at once
KEPT: Final = 7 * 86_400  # seconds that a record and its data outlive the session, for an `on_end` that was not run
_COUNTED: Final = ("done", "value", "size", "change", "ttl")  # what a change returns where the size is another
_ANONYMOUS: Final = "anonymous"  # the account of sessions without a principal

# A name's time lies in `times` under '=' and the name; under '#' the bytes of all names and values; under '$' the
# account that they are counted in, and under '%' how often their size has changed.
# What needs memory is written first: a full Redis refuses only a script that has not written yet.
_DATA: Final = (
    f"local VALUE_COST = {VALUE_COST}"
    """
local ended, session, data, times = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local now, ttl, kept, most = tonumber(ARGV[1]), ARGV[2], ARGV[3], tonumber(ARGV[4])
local account, room, name = ARGV[5], tonumber(ARGV[6]), ARGV[7]
local function gone() return redis.call('EXISTS', ended) == 1 or redis.call('HEXISTS', session, 'x') == 1 end
local function drop(what)
  local old = redis.call('HGET', data, what)
  redis.call('HDEL', data, what)
  if old then redis.call('HINCRBY', times, '#', -#what - #old) end
  redis.call('HDEL', times, '=' .. what)
end
local function live()
  local ends = redis.call('HGET', times, '=' .. name)
  if ends and not (now < tonumber(ends)) then return false, '' end
  return redis.call('HGET', data, name), ends or ''
end
local function total() return tonumber(redis.call('HGET', times, '#') or 0) end
local function cost() return total() + VALUE_COST * redis.call('HLEN', data) end
local function make_room()
  local all = redis.call('HGETALL', times)
  for i = 1, #all, 2 do
    if string.sub(all[i], 1, 1) == '=' and not (now < tonumber(all[i + 1])) then drop(string.sub(all[i], 2)) end
  end
end
local function taken() local old = redis.call('HGET', data, name); return old and #name + #old or 0 end
local before, grows = cost(), 0
local function excess(more, costs)
  if total() + more > most then return 'large' end
  grows = cost() + costs - before
  if room and costs > 0 and grows > 0 and grows > room then return 'crowded' end
end
local function refusal(size)
  local function found()
    local old = taken()
    return excess(size - old, size - old + (old > 0 and 0 or VALUE_COST))
  end
  if found() then make_room() end
  return found()
end
local function keep()
  if redis.call('EXISTS', session) == 1 then ttl = kept end
  for _, key in ipairs({data, times}) do redis.call('EXPIRE', key, ttl) end
end
local function put(value, ends)
  local size = #name + #value
  local why = refusal(size)
  if why then return why end
  local more = size - taken()
  redis.call('HSET', data, name, value)
  redis.call('HINCRBY', times, '#', more)
  if ends ~= '' then redis.call('HSET', times, '=' .. name, ends) else redis.call('HDEL', times, '=' .. name) end
  keep()
end
local function done(value)
  local after = cost()
  if account == '' or after == before then return {'done', value or ''} end
  redis.call('HSET', times, '$', account)
  local change = redis.call('HINCRBY', times, '%', 1)
  return {'done', value or '', after, change, math.max(redis.call('TTL', times), 1)}
end
local function outcome(why) return why and {why, grows} or done() end
"""
)


def _on_data(source: str) -> Script:
    """Make a script that takes the four data keys.

    Its arguments are now, ttl, ttl while recorded, the session's limit, its account and the room there (or nothing),
    the name, and what stands above it.
    """
    return Script(_DATA + source)


def _change(source: str) -> Script:
    """Make one that also returns the session's new size, the number of the change and its ttl, where that changed."""
    return _on_data("if gone() then return {'gone'} end" + source)


READ: Final = _on_data("return (live())")

# -> {name value expires-or-nothing}...
ITEMS: Final = _on_data("""
local found, all = {}, redis.call('HGETALL', data)
for i = 1, #all, 2 do
  name = all[i]
  local value, ends = live()
  for _, word in ipairs(value and {name, value, ends} or {}) do found[#found + 1] = word end
end
return found
""")

# {name value expires-or-nothing}... -> done, large, crowded or gone
FILL: Final = _change("""
for i = 8, #ARGV, 3 do
  name = ARGV[i]
  local why = put(ARGV[i + 1], ARGV[i + 2])
  if why then return outcome(why) end
end
return done()
""")

# value expires (each may be nothing) -> done, large, crowded or gone
WRITE: Final = _change("""
if ARGV[8] ~= '' and (ARGV[9] == '' or now < tonumber(ARGV[9])) then return outcome(put(ARGV[8], ARGV[9])) end
drop(name)
return done()
""")

# old new (each may be nothing) -> done, changed, large, crowded or gone
COMPARE_AND_SWAP: Final = _change("""
local value, ends = live()
if (value or '') ~= ARGV[8] then return {'changed'} end
if ARGV[9] ~= '' then return outcome(put(ARGV[9], ends)) end
drop(name)
return done()
""")

# by -> done and the sum (as text: Lua's numbers are doubles), not-integer, large, crowded or gone
ADD: Final = _change("""
local old, ends = live()
if not old and taken() > 0 then drop(name) end
local sum = redis.pcall('HINCRBY', data, name, ARGV[8])
if type(sum) == 'table' then
  local wrong = string.find(sum.err, 'integer', 1, true) or string.find(sum.err, 'overflow', 1, true)
  return wrong and {'not-integer'} or sum
end
local new = redis.call('HGET', data, name)
local more = old and #new - #old or #name + #new
local why = excess(more, more)
if why then
  make_room()
  why = excess(more, more)
end
if why then
  if old then redis.call('HSET', data, name, old) else redis.call('HDEL', data, name) end
  return outcome(why)
end
redis.call('HINCRBY', times, '#', more)
keep()
return done(new)
""")

# --- accounts: account ends; now ...

_ACCOUNT: Final = """
local function set(ref, cost, change)
  local old = redis.call('HGET', KEYS[1], ref)
  local counted, last = 0, 0
  if old then counted, last = string.match(old, '^(%d+) (%d+)$') end
  if tonumber(change) <= tonumber(last) then return end
  redis.call('HSET', KEYS[1], ref, cost .. ' ' .. change)
  redis.call('HINCRBY', KEYS[1], '#', cost - counted)
end
local function forget(ref)
  local old = redis.call('HGET', KEYS[1], ref)
  if old then
    redis.call('HINCRBY', KEYS[1], '#', -string.match(old, '^%d+'))
    redis.call('HDEL', KEYS[1], ref)
  end
  redis.call('ZREM', KEYS[2], ref)
end
for _, ref in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', ARGV[1], 'LIMIT', 0, 1000)) do forget(ref) end
local function total() return tonumber(redis.call('HGET', KEYS[1], '#') or 0) end
"""

# -> the bytes that all data of a principal takes
TOTAL: Final = allow_oom(_ACCOUNT + "return total()")

# ref cost change ttl -> the bytes
COUNT: Final = allow_oom(
    _ACCOUNT
    + """
set(ARGV[2], ARGV[3], ARGV[4])
redis.call('ZADD', KEYS[2], tonumber(ARGV[1]) + tonumber(ARGV[5]), ARGV[2])
for i = 1, 2 do
  if redis.call('TTL', KEYS[i]) < tonumber(ARGV[5]) then redis.call('EXPIRE', KEYS[i], ARGV[5]) end
end
return total()
"""
)

# ref -> the bytes
DISCOUNT: Final = allow_oom(_ACCOUNT + "forget(ARGV[2]) return total()")

_ERRORS: Final[Mapping[bytes, tuple[type[DataError], str]]] = {
    b"gone": (DataGone, "the session has ended"),
    b"large": (DataTooLarge, "the session's data would exceed its limit"),
    b"not-integer": (DataNotInteger, "the value or the sum is not a 64-bit integer"),
}
"""What the scripts answer where they change nothing."""


class RedisData:
    """The part of a Redis store that holds data."""

    def __init__(self, connection: RedisConnection, keys: Keys, *, leeway: float, clock: Callable[[], float]) -> None:
        self._connection = connection
        self._keys = keys
        self._leeway = leeway
        self._clock = clock
        self._totals: dict[str, tuple[float, int]] = {}  # by account: when it was known, and its bytes

    @abstractmethod
    async def _ready(self) -> float:
        """Open at first use, and return the time."""

    def _ttl(self, until: float, now: float, *, recorded: bool = False) -> int:
        """Return the seconds until what belongs to a session may be forgotten: at least one, or Redis does at once."""
        return max(1, math.ceil(until + self._leeway - now + (KEPT if recorded else 0)))

    async def read(self, namespace: Namespace, key: str) -> bytes | None:
        now = await self._ready()
        found: list[bytes | None] = await self._connection.run(self._on_data(READ, namespace, key, now))
        return found[0]

    async def write(
        self, namespace: Namespace, key: str, value: bytes | None, *, expires_at: float | None = None
    ) -> None:
        ends = "" if expires_at is None else repr(float(expires_at))
        await self._change(WRITE, namespace, key, value or b"", ends)

    async def compare_and_swap(self, namespace: Namespace, key: str, old: bytes | None, new: bytes | None) -> bool:
        done, *_ = await self._change(COMPARE_AND_SWAP, namespace, key, old or b"", new or b"")
        return bool(done == b"done")

    async def add(self, namespace: Namespace, key: str, by: int) -> int:
        if by not in INT64:
            raise DataNotInteger(_ERRORS[b"not-integer"][1])
        _, total, *_ = await self._change(ADD, namespace, key, by)
        return int(total)

    async def copy(self, namespace: Namespace, target: Namespace) -> None:
        now = await self._ready()
        (items,) = await self._connection.run(self._on_data(ITEMS, namespace, "", now))
        await self._change(FILL, target, "", *items)

    async def _change(self, script: Script, namespace: Namespace, key: str, *args: Word) -> list[Any]:
        """Change data, never twice: a first time may have succeeded, and be followed by another's change."""
        now = await self._ready()
        found: list[Any] = [b"gone"]
        if now < namespace.expires_at + self._leeway:
            total, most = await self._total(namespace, now), namespace.max_subject_bytes
            command = self._on_data(script, namespace, key, now, *args, room="" if most is None else most - total)
            (found,) = await self._connection.run(command, idempotent=False)
            if found[0] == b"crowded":
                check_principal(namespace, total, found[1])
        if found[0] in _ERRORS:
            error, text = _ERRORS[found[0]]
            raise error(text)
        if len(found) == len(_COUNTED):
            with suppress(StoreUnavailable):  # the change was made; the next one is counted with it
                await self._count(COUNT, _account(namespace), now, namespace.owner, *found[2:])
        return found

    def _on_data(
        self, script: Script, namespace: Namespace, key: str, now: float, *args: Word, room: Word = ""
    ) -> Command:
        ttls = (self._ttl(namespace.expires_at, now), self._ttl(namespace.expires_at, now, recorded=True))
        of = (namespace.max_bytes, _account(namespace), room, key)
        return script(*self._keys.data_keys(namespace.owner), args=(repr(now), *ttls, *of, *args))

    async def _total(self, namespace: Namespace, now: float) -> int:
        """Return the bytes of all data of a session's principal, where that has a limit."""
        account, most = _account(namespace), namespace.max_subject_bytes
        if not account or most is None:
            return 0
        known_at, known = self._totals.get(account, (-math.inf, 0))
        if time.monotonic() < known_at + _FRESH and known <= most // 2:
            return known
        return await self._count(TOTAL, account, now)

    async def _count(self, script: Script, account: str, now: float, *args: Word) -> int:
        (total,) = await self._connection.run(script(*self._keys.account(account), args=(repr(now), *args)))
        if len(self._totals) >= KNOWN:
            self._totals.clear()
        self._totals[account] = (time.monotonic(), int(total))
        return int(total)

    async def usage(self) -> StoreUsage:
        """Return what fills this store."""
        recorded = await self._each("due:*", "ZCARD")
        listed = await self._each("sessions:listed:*", "ZCARD")
        accounts = await self._each("account", "HGET", "#")
        data = await self._each("times", "HGET", "#")
        return StoreUsage(sum(recorded), max(listed, default=0), sum(data), max(accounts, default=0))

    async def _each(self, part: str, command: str, *args: Word) -> list[int]:
        """Return what a command returns for each key of a kind."""
        keys = [key async for key in self._connection.scan(self._keys.all(part))]
        pages = [keys[start : start + _SCANNED] for start in range(0, len(keys), _SCANNED)]
        found = [await self._connection.run(*((command, key, *args) for key in page)) for page in pages]
        return [int(each or 0) for page in found for each in page]


def _account(namespace: Namespace) -> str:
    """Return the account that a session's data is counted in, or nothing where it is not."""
    return "" if namespace.subject is None else namespace.subject or _ANONYMOUS
