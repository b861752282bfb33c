"""`session.data`: what the server keeps for a session, changed by parallel calls without loss.

Values are JSON. A change is one atomic step in the store, across tasks, processes and machines; what
cannot be one step (`update`) is tried again until nobody else changed the value in between. Nothing
here reaches the store itself: it is handed in, and data dies with its session.

The JSON of a value that will be read back: as it is, or not at all.

State and data are Python values that an application writes in one request and reads in another. What
JSON would quietly change on the way (a tuple, a date, NaN, a number as a key) is refused where it is
written. The rule is RFC 8259; nothing here knows what the value is for.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, Protocol

import msgspec

from ..errors import DataError, DataNotInteger, DataNotJSON, DataTooLarge

MAX_KEY_BYTES: Final = 256  # of UTF-8
MAX_ROUNDS: Final = 1000  # each is lost only when somebody else's change got through
_INTEGERS: Final = range(-(1 << 63), 1 << 63)  # what every store can add


class Namespace(msgspec.Struct, frozen=True):
    """One session's place in a store.

    Args:
        owner: The `ref` of the session that the data belongs to.
        until: When that session ends by itself, Unix seconds; its data may go some leeway after that.
        max_bytes: Bytes that its names (UTF-8) and values may have in all.
    """

    owner: str
    until: int
    max_bytes: int


class DataStore(Protocol):
    """The part of a store that holds data. Every change is one atomic step, and durable on return.

    Changing data of a session that was revoked raises `DataGone`; reading it works until `finish`.
    """

    async def read(self, shelf: Namespace, key: str) -> bytes | None:
        """A value's JSON, or None where there is none or its time is over."""
        ...

    async def write(self, shelf: Namespace, key: str, value: bytes | None, *, expires_at: float | None = None) -> None:
        """Keep a value, or None to keep none.

        Args:
            shelf: Where.
            key: Its name.
            value: Its JSON.
            expires_at: When its time is over, Unix seconds, or None for as long as the session.

        Raises:
            DataTooLarge: The session's data would exceed `shelf.max_bytes`.
            DataGone: The session was revoked.
        """

    async def compare_and_swap(self, shelf: Namespace, key: str, old: bytes | None, new: bytes | None) -> bool:
        """Replace a value by another if it is still the old one; its time stays as it was.

        Returns:
            Whether it was.

        Raises:
            DataTooLarge: The session's data would exceed `shelf.max_bytes`.
            DataGone: The session was revoked.
        """
        ...

    async def add(self, shelf: Namespace, key: str, by: int) -> int:
        """Add to a value, which is 0 where there is none; its time stays as it was.

        Returns:
            The sum. Signed, of 64 bits at most.

        Raises:
            DataNotInteger: The value or the sum is no integer of 64 bits.
            DataTooLarge: The session's data would exceed `shelf.max_bytes`.
            DataGone: The session was revoked.
        """
        ...

    async def copy(self, shelf: Namespace, target: Namespace) -> None:
        """Put what lies on a shelf now onto another, which is new, with the times that the values have."""


class Data:
    """What the server keeps for one session, under names, until the session ends.

    It belongs to the session and not to the request: all requests of the session share it, on every
    worker, and parallel changes lose nothing. A value is anything that JSON can say and give back as
    it is, `None` included; what removes a value is `delete`.
    """

    __slots__ = ("_clock", "_max_value_bytes", "_shelf", "_store")

    def __init__(self, store: DataStore, shelf: Namespace, *, clock: Callable[[], float], max_value_bytes: int) -> None:
        """Args:
        store: Where it is kept.
        shelf: The session's place there.
        clock: Unix seconds.
        max_value_bytes: How long one value's JSON may be.
        """
        self._store = store
        self._shelf = shelf
        self._clock = clock
        self._max_value_bytes = max_value_bytes

    async def get(self, key: str, default: Any = None) -> Any:
        """The value under a name.

        Args:
            key: Its name: text of 1 to 256 bytes in UTF-8.
            default: What is returned where there is none.

        Raises:
            DataError: `key` cannot be a name.
            StoreUnavailable: The store did not answer.
        """
        kept = await self._store.read(self._shelf, _name(key))
        return default if kept is None else decode(kept)

    async def set(self, key: str, value: Any, *, ttl: float | timedelta | None = None) -> None:
        """Keep a value under a name, whatever was there before.

        Args:
            key: Its name.
            value: Anything that JSON can say and give back as it is.
            ttl: Seconds, or a `timedelta`, for which it is kept; None for as long as the session lives.

        Raises:
            DataNotJSON: The value has no JSON form, or would not come back as it is.
            DataTooLarge: The value, or all of the session's data with it, would exceed its limit.
            DataGone: The session has ended.
            DataError: `key` cannot be a name, or `ttl` is no time.
            StoreUnavailable: The store did not take it, or it is not certain that it did.
        """
        name, encoded = _name(key), self._encode(value)
        await self._store.write(self._shelf, name, encoded, expires_at=self._expires_at(ttl))

    async def delete(self, key: str) -> None:
        """Keep nothing under a name. Deleting what is not there does nothing.

        Raises:
            DataGone: The session has ended.
            DataError: `key` cannot be a name.
            StoreUnavailable: The store did not take it, or it is not certain that it did.
        """
        await self._store.write(self._shelf, _name(key), None)

    async def update(self, key: str, fn: Callable[[Any], Any], default: Any = None) -> Any:
        """Change a value by a function of it; of parallel updates none is lost.

            await session.data.update("cart", lambda cart: cart + ["socks"], default=[])

        The function is called again, with the new value, whenever somebody else changed the value in
        the meantime: it must have no effect but its result. It may change what it is given, which is
        a copy. What it returns is kept, `None` included. The value's time (`ttl`) stays as it was.

        Args:
            key: The value's name.
            fn: Called with the value; returns the new one.
            default: What it is called with where there is no value.

        Returns:
            The new value.

        Raises:
            TypeError: `fn` is an async function.
            DataNotJSON: What `fn` returned, or `default`, has no JSON form or would not come back as it is.
            DataTooLarge: The new value, or all of the session's data with it, would exceed its limit.
            DataGone: The session has ended.
            DataError: `key` cannot be a name, or a thousand other changes came in between.
            StoreUnavailable: The store did not take it, or it is not certain that it did.
        """
        name, absent = _name(key), _encode(default)
        for _ in range(MAX_ROUNDS):
            old = await self._store.read(self._shelf, name)
            changed = _result(fn, decode(absent if old is None else old))
            if await self._store.compare_and_swap(self._shelf, name, old, self._encode(changed)):
                return changed
        raise DataError(
            f"update lost against {MAX_ROUNDS} other changes of this value; count with increment(), or spread over keys"
        )

    async def increment(self, key: str, by: int = 1) -> int:
        """Add to a number in one step; no value counts as 0.

        Args:
            key: The number's name.
            by: A whole number, which may be negative.

        Returns:
            The sum.

        Raises:
            DataNotInteger: The value or `by` is no integer, or one of them or the sum exceeds 64 bits, signed.
            DataTooLarge: All of the session's data together would exceed its limit.
            DataGone: The session has ended.
            DataError: `key` cannot be a name.
            StoreUnavailable: The store did not take it, or it is not certain that it did.
        """
        return await self._store.add(self._shelf, _name(key), _integer(by))

    def _encode(self, value: Any) -> bytes:
        encoded = _encode(value)
        if len(encoded) <= self._max_value_bytes:
            return encoded
        raise DataTooLarge(
            f"the value takes {len(encoded)} bytes as JSON; the limit is {self._max_value_bytes} (max_value_bytes)"
        )

    def _expires_at(self, ttl: float | timedelta | None) -> float | None:
        if ttl is None:
            return None
        now, seconds = self._clock(), _seconds(ttl)
        return now + seconds if seconds < self._shelf.until - now else None  # it dies with its session in any case

    def __repr__(self) -> str:
        return f"<Data of {self._shelf.owner}>"


def _name(key: object) -> str:
    """A key that every store takes and gives back alike."""
    if isinstance(key, str) and "\0" not in key and 0 < _size(key) <= MAX_KEY_BYTES:
        return key
    raise DataError(f"a key must be text of 1 to {MAX_KEY_BYTES} bytes in UTF-8, without NUL and lone surrogates")


def _size(text: str) -> int:
    """Bytes in UTF-8; 0 for what it cannot hold."""
    try:
        return len(text.encode("utf-8"))
    except UnicodeEncodeError:
        return 0


def _seconds(ttl: object) -> float:
    seconds = ttl.total_seconds() if isinstance(ttl, timedelta) else ttl
    if isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and seconds > 0:
        return seconds
    raise DataError("ttl must be more than 0 seconds, a number or a timedelta; to remove a value, delete() it")


def _integer(by: object) -> int:
    if isinstance(by, int) and not isinstance(by, bool) and by in _INTEGERS:
        return int(by)
    raise DataNotInteger("increment() takes a whole number of 64 bits at most, signed")


def _encode(value: Any) -> bytes:
    try:
        return encode(value)
    except ValueError as error:
        raise DataNotJSON(f"session data must be JSON: {error}") from error


def _result(fn: Callable[[Any], Any], value: Any) -> Any:
    changed = fn(value)
    if not inspect.iscoroutine(changed):
        return changed
    changed.close()  # or Python warns that it was never awaited
    raise TypeError(
        "update() takes a plain function, which may be called several times: await what it needs before, and pass that"
    )


def encode(value: Any) -> bytes:
    """The JSON of a value that comes back equal.

    Raises:
        ValueError: It has none, or none that would; the message says which and shows nothing of it.
    """
    try:
        encoded = msgspec.json.encode(value)
        kept = decode(encoded)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError("it holds a value that has no JSON form") from error
    if kept != value:  # NaN, dates, bytes, tuples and number keys would come back as something else
        raise ValueError("it holds a value that would not come back as it is")
    return encoded


def decode(encoded: bytes) -> Any:
    """The value that `encode` was given."""
    return msgspec.json.decode(encoded)
