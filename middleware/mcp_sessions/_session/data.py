"""`session.data`: JSON that the server keeps for a session, changed by parallel calls without loss.

Each change is one atomic step in the store; `update`, which cannot be, is tried again until no other change came in
between, and parallel ones of one process take turns. A value that JSON would change (a tuple, a date, NaN, a
number as a key) is refused. Source: RFC 8259.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, nullcontext
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from .._errors import DataError, DataNotInteger, DataNotJSON, DataTooLarge
from .claims import AUDIENCE
from .tool_errors import shown_by_tools

if TYPE_CHECKING:
    from typing_extensions import Self

MAX_KEY_BYTES: Final = 256  # of UTF-8
MAX_ROUNDS: Final = 1000  # each is lost only when another change got through
_INTEGERS: Final = range(-(1 << 63), 1 << 63)  # what every store can add


class Namespace(msgspec.Struct, frozen=True):
    """One session's place in a store."""

    owner: str  # the `ref` of the session that the data belongs to
    expires_at: int  # when that session ends by itself, Unix seconds; its data may go some leeway after that
    max_bytes: int  # of its names (UTF-8) and values in all
    subject: str | None = None  # whose session it is, where that counts
    max_subject_bytes: int | None = None  # of all sessions of that subject, with `VALUE_COST` for each value
    audience: str = AUDIENCE  # the deployment that the session belongs to

    @property
    def account(self) -> str | None:
        """The name under which the data of a subject is counted, or None: each deployment counts for itself."""
        return None if self.subject is None else f"{self.subject} {self.audience}"  # no subject has a blank


class ReservedName(str):
    """The name of a value that a library of this package keeps in a session's data.

    It has a special type, unlike any client's text, and is stored under a name with NUL, which `Data` refuses from
    everybody else: so an application may use every name that it can write, and none of them is a library's.
    """

    __slots__ = ()

    def __new__(cls, library: str, key: str) -> Self:
        """Return the name of a library's value; `DataError` if no value can have this key."""
        return super().__new__(cls, f"\0{library}\0{_name(key)}")


class DataStore(Protocol):
    """The part of a store that holds data. Every change is one atomic step, and durable on return.

    A change raises `DataGone` where the session was revoked, and `DataTooLarge` where the session's data would exceed
    `namespace.max_bytes`, or `PrincipalDataTooLarge` where its principal's would. Reading works until `purge`. A key is
    any text, also an empty one or one with NUL.
    """

    async def read(self, namespace: Namespace, key: str) -> bytes | None:
        """Return a value's JSON, or None if it is missing or has expired."""
        ...

    async def write(
        self, namespace: Namespace, key: str, value: bytes | None, *, expires_at: float | None = None
    ) -> None:
        """Keep a value's JSON, or None to keep none, until `expires_at`, Unix seconds, or as long as the session."""

    async def compare_and_swap(self, namespace: Namespace, key: str, old: bytes | None, new: bytes | None) -> bool:
        """Replace a value by another if it is still the old one, and return whether it was; its time stays."""
        ...

    async def add(self, namespace: Namespace, key: str, by: int) -> int:
        """Add to a value, which counts as 0 if it is missing, and return the sum; its expiry stays.

        Raises:
            DataNotInteger: The value or the sum is not an integer of 64 bits, signed.
        """
        ...

    async def copy(self, namespace: Namespace, target: Namespace) -> None:
        """Copy what a namespace holds now into another, which is new, with the times that the values have."""


Locks = Callable[[tuple[str, str]], AbstractAsyncContextManager[object]]
"""Returns what lets one update of a session and a name through at a time, in this process."""


Blocking = Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any]
"""What calls a coroutine function on the event loop from another thread, and returns the result."""


def _cannot_wait(_call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    raise DataError("this session data has no event loop that threads could wait for: await its methods")


class Data:
    """Named values that the server keeps for a session until it ends.

    All requests of the session share them, on every worker, and parallel changes lose nothing. A value is anything that
    survives a round trip through JSON, including `None`; to remove a value, use `delete`.

    Every method raises `DataError` for an invalid name (a name has 1 to 256 bytes in UTF-8), and `StoreUnavailable` if
    the store does not answer, in which case a change may or may not have been made. Every change raises `DataGone`
    after the session has ended, and `DataTooLarge` if a value, or the session's data in total, would exceed its limit.
    """

    __slots__ = ("_blocking", "_clock", "_lock", "_max_value_bytes", "_namespace", "_store")

    def __init__(
        self,
        store: DataStore,
        namespace: Namespace,
        *,
        clock: Callable[[], float],
        max_value_bytes: int,
        lock: Locks = nullcontext,
        blocking: Blocking = _cannot_wait,
    ) -> None:
        self._store = store
        self._namespace = namespace
        self._clock = clock
        self._max_value_bytes = max_value_bytes
        self._lock = lock
        self._blocking = blocking

    @property
    def sync(self) -> SyncData:
        """The same values for plain functions, which most frameworks call in worker threads."""
        return SyncData(self, self._blocking)

    async def get(self, key: str, default: Any = None) -> Any:
        """Return the value of this name, or the default if it is missing."""
        kept = await shown_by_tools(self._store.read, self._namespace, _name(key))
        return default if kept is None else decode(kept)

    async def set(self, key: str, value: Any, *, ttl: float | timedelta | None = None) -> None:
        """Set a value, replacing any previous one.

        Args:
            key: Its name.
            value: Anything that survives a round trip through JSON.
            ttl: Seconds, or a `timedelta`, after which it is removed; None keeps it until the session ends.

        Raises:
            DataNotJSON: The value does not survive a round trip through JSON.
            DataError: `ttl` is not a duration.
        """
        name = _name(key)
        encoded = self._encode(name, value)
        now, expires_at = self._clock(), None
        if ttl is not None and (seconds := _seconds(ttl)) < self._namespace.expires_at - now:
            expires_at = now + seconds  # else it ends with the session
        await shown_by_tools(self._store.write, self._namespace, name, encoded, expires_at=expires_at)

    async def delete(self, key: str) -> None:
        """Remove a value, if there is one."""
        await shown_by_tools(self._store.write, self._namespace, _name(key), None)

    async def update(self, key: str, fn: Callable[[Any], Any], default: Any = None) -> Any:
        """Change a value with a function, without losing parallel updates.

            await session.data.update("cart", lambda cart: cart + ["socks"], default=[])

        The function is called again with the new value whenever another change intervened. The value keeps its `ttl`.

        Args:
            key: The value's name.
            fn: Called with a copy of the value, which it may modify; returns the new value. It must have no side
                effects.
            default: The value to start from if it is missing.

        Returns:
            The new value.

        Raises:
            TypeError: `fn` is an async function, or returned None although the value was not None.
            DataNotJSON: The result of `fn`, or `default`, does not survive a round trip through JSON.
            DataError: A thousand other changes intervened.
        """
        name = _name(key)
        initial = _encode(name, default)
        async with self._lock((self._namespace.owner, name)):  # else parallel ones of this process spoil each other
            for _ in range(MAX_ROUNDS):
                old = await shown_by_tools(self._store.read, self._namespace, name)
                value = _result(fn, decode(initial if old is None else old))
                if await shown_by_tools(
                    self._store.compare_and_swap, self._namespace, name, old, self._encode(name, value)
                ):
                    return value
        raise DataError(
            f"update lost against {MAX_ROUNDS} other changes of this value; count with increment(), or spread over keys"
        )

    async def increment(self, key: str, by: int = 1) -> int:
        """Add an integer to a value atomically, and return the sum; a missing value counts as 0.

        Raises:
            DataNotInteger: The value or `by` is not an integer, or one of them or the sum exceeds 64 bits (signed).
        """
        name = _name(key)
        is_integer = isinstance(by, int) and not isinstance(by, bool)  # type: ignore[redundant-expr]  # as it came
        if not (is_integer and by in _INTEGERS):
            raise DataNotInteger("increment() takes a signed integer of at most 64 bits")
        return await shown_by_tools(self._store.add, self._namespace, name, int(by))

    def _encode(self, name: str, value: Any) -> bytes:
        encoded = _encode(name, value)
        if len(encoded) <= self._max_value_bytes:
            return encoded
        raise DataTooLarge(
            f"the value takes {len(encoded)} bytes as JSON; the limit is {self._max_value_bytes} (Limits.value_bytes)"
        )

    def __repr__(self) -> str:
        return f"<Data of {self._namespace.owner}>"


class SyncData:
    """The methods of `Data` for plain functions, in any thread that has the session: each returns when the store has.

        total = require_session().data.sync.increment("calls")

    SDK 2.x, FastMCP, FastAPI, Starlette and Django call plain functions in threads. On the event loop, where SDK 1.x
    calls plain tools, every method raises `DataError`, since waiting there would stop the server.
    """

    __slots__ = ("_call", "_data")

    def __init__(self, data: Data, call: Blocking) -> None:
        self._data = data
        self._call = call

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of this name, or the default if it is missing."""
        return self._call(partial(self._data.get, key, default))

    def set(self, key: str, value: Any, *, ttl: float | timedelta | None = None) -> None:
        """Set a value; see `Data.set`."""
        self._call(partial(self._data.set, key, value, ttl=ttl))

    def delete(self, key: str) -> None:
        """Remove a value, if there is one."""
        self._call(partial(self._data.delete, key))

    def update(self, key: str, fn: Callable[[Any], Any], default: Any = None) -> Any:
        """Change a value with a function, which is called on the event loop; see `Data.update`."""
        return self._call(partial(self._data.update, key, fn, default))

    def increment(self, key: str, by: int = 1) -> int:
        """Add an integer to a value, and return the sum; see `Data.increment`."""
        total: int = self._call(partial(self._data.increment, key, by))
        return total

    def __repr__(self) -> str:
        return repr(self._data)


def _name(key: object) -> str:
    if type(key) is ReservedName:
        return str(key)
    if isinstance(key, str) and "\0" not in key and len(key) <= MAX_KEY_BYTES:
        try:
            if 0 < len(key.encode("utf-8")) <= MAX_KEY_BYTES:
                return key
        except UnicodeEncodeError:
            pass
    raise DataError(f"a key must be text of 1 to {MAX_KEY_BYTES} bytes in UTF-8, without NUL or lone surrogates")


def _seconds(ttl: object) -> float:
    seconds = ttl.total_seconds() if isinstance(ttl, timedelta) else ttl
    if isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and seconds > 0:
        return seconds
    raise DataError("ttl must be more than 0 seconds, a number or a timedelta; to remove a value, delete() it")


def _encode(name: str, value: Any) -> bytes:
    try:
        return encode(value)
    except ValueError as error:
        raise DataNotJSON(f"session data must be JSON: {error}, under {name!r}") from error


def _result(fn: Callable[[Any], Any], value: Any) -> Any:
    changed = fn(value)
    if changed is None and value is not None:
        raise TypeError("the function of update() returned None: it must return the new value; delete() removes one")
    if not inspect.iscoroutine(changed):
        return changed
    changed.close()  # or Python warns that it was never awaited
    raise TypeError(
        "update() takes a plain function, which may be called several times: await what it needs before, and pass that"
    )


_write: Final = msgspec.json.Encoder().encode
decode: Final = msgspec.json.Decoder().decode
"""Return the value that `encode` was given."""


def encode(value: Any) -> bytes:
    """Return the JSON of a value that comes back equal, or raise a `ValueError` that shows nothing of its content."""
    try:
        encoded = _write(value)
        kept = decode(encoded)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"it holds {_unsupported_part(value)} that has no JSON form") from error
    if kept != value:  # NaN, dates, bytes, tuples and number keys would come back as something else
        raise ValueError(f"it holds {_unsupported_part(value)} that would not come back as it is")
    return encoded


def _unsupported_part(value: Any) -> str:
    """Return the type of the part of a value that cannot be kept, or "a value" where it is the whole."""
    left, seen = [value], set[int]()
    while left:
        one = left.pop()
        if type(one) not in {dict, list}:
            try:
                is_kept = decode(_write(one)) == one
            except (TypeError, ValueError, OverflowError):
                is_kept = False
            if not is_kept:
                return f"a value of type {type(one).__name__}"
        elif id(one) not in seen:  # it may hold itself
            seen.add(id(one))
            if odd := [type(key).__name__ for key in one if isinstance(one, dict) and not isinstance(key, str)]:
                return f"a key of type {odd[0]}"
            left += [*one, *one.values()] if isinstance(one, dict) else one
    return "a value"
