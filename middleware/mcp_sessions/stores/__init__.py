"""Stores of revocations, records and session data, and what a store of your own needs.

`make` turns the `store=` option into a store whose calls end in time. A driver is imported only where it is asked for.
A store across a network may hang, and a foreign one may raise anything: what is not an error of this package becomes
`StoreUnavailable`, which a caller never takes for "no". No text here or in the log repeats an option's value or a
driver's words, since a URL may hold a password.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio

from .._errors import ConfigurationError, MCPSessionsError, StoreUnavailable
from .._refusals import refusal
from .._session.claims import Claims
from .._session.data import Namespace
from ._base import (
    FIRST,
    LIVE,
    METHODS,
    VALUE_COST,
    Delegating,
    Ended,
    Position,
    Reach,
    Record,
    Standing,
    Store,
    added,
    check_principal,
    check_size,
    idle_at,
    is_touch_due,
    size_of,
)
from ._memory import MemoryStore
from ._sql import hidden

if TYPE_CHECKING:
    from ._key_value import KeyValueStore
    from ._postgres import PostgresStore
    from ._redis import RedisStore
    from ._sqlite import SQLiteStore

__all__ = [
    "FIRST",
    "VALUE_COST",
    "Ended",
    "KeyValueStore",
    "MemoryStore",
    "Namespace",
    "Position",
    "PostgresStore",
    "Reach",
    "Record",
    "RedisStore",
    "SQLiteStore",
    "Standing",
    "Store",
    "added",
    "check_principal",
    "check_size",
    "idle_at",
    "is_touch_due",
    "refusal",
    "size_of",
]
_WITH_DRIVER: Final = {
    "KeyValueStore": "_key_value",
    "PostgresStore": "_postgres",
    "RedisStore": "_redis",
    "SQLiteStore": "_sqlite",
}

_logger: Final = logging.getLogger("mcp_sessions")
_T = TypeVar("_T")
_Clock = Callable[[], float]
_REMEDY: Final = (
    "use 'memory:' (one process), 'sqlite:PATH' (one machine), 'redis://HOST:PORT/DATABASE' or its forms 'rediss://', "
    "'unix://', 'redis+cluster://' and 'redis+sentinel://', or 'postgresql://USER@HOST/DATABASE' (many machines), or "
    "an object that is a mcp_sessions.stores.Store"
)
_STEPS: Final = 10  # times that the event loop comes round; an answer needs five or so from the socket to its caller
_MINUTE: Final = 60.0  # seconds
_BACKGROUND: Final = 0  # for calls that no request waits for: start, stop, sweeping, and questions from outside

_ROUND_TRIPS: Final[Mapping[str, int]] = {  # how many answers of the store each method waits for at the most
    # `open` the first time; a later one is a request's, which may take three round trips.
    **dict.fromkeys(("open", "close", "revoke_before", "find", "roster", "count", "claim_ended", "elect"), _BACKGROUND),
    **dict.fromkeys(("status", "statuses", "touch", "read", "write", "compare_and_swap", "add"), 1),
    **dict.fromkeys(("admit", "revoke", "register", "sessions", "purge", "copy"), 3),
}
_CHANGES: Final = frozenset({"revoke", "register", "write", "compare_and_swap", "add", "copy"})
"""What may also wait until a disk or a replica has it, where a store says for how long (`patience`, in seconds)."""


def make(store: object, *, clock: _Clock, timeout: float) -> Store:
    """Return the store that an option names.

    Args:
        store: `"memory:"`, `"sqlite:PATH"`, a Redis or Valkey URL, or an object that is a store.
        clock: Unix seconds.
        timeout: Seconds within which each call of the store ends; one in this process's memory needs none.

    Raises:
        ConfigurationError: It names none, or the object lacks a part of the contract; the message says the remedy.
    """
    made = _from_name(store, clock, timeout) if isinstance(store, str) else _checked(store)
    return made if isinstance(made, (MemoryStore, _TimeoutStore)) else _TimeoutStore(made, seconds=timeout)


def _from_name(name: str, clock: _Clock, timeout: float) -> Store:
    if name == "memory:":
        return MemoryStore(clock=clock)
    if name.startswith("memory:"):
        raise ConfigurationError("store='memory:' takes nothing after the colon")
    if name.startswith("sqlite:"):
        path = name.removeprefix("sqlite:")
        # "//" begins a URL in other libraries, where three slashes mean a relative path and four an absolute one.
        if not path or path.startswith(("//", ":")):
            raise ConfigurationError("store='sqlite:PATH' takes a plain path, as in 'sqlite:/var/lib/app/sessions.db'")
        from ._sqlite import SQLiteStore

        return SQLiteStore(path, clock=clock, busy_timeout=max(_ROUND_TRIPS.values()) * timeout)
    if name.startswith(("redis://", "rediss://", "unix://", "redis+", "rediss+")):
        from ._redis import RedisStore

        return RedisStore(name, clock=clock, timeout=timeout)
    if name.startswith(("postgresql://", "postgres://")):
        from ._postgres import PostgresStore

        return PostgresStore(name, clock=clock, timeout=timeout)
    raise ConfigurationError(f"store= does not name a store; {_REMEDY}")


def _checked(store: Any) -> Any:
    if store is None or isinstance(store, type):
        raise ConfigurationError(f"store= takes a store, not {'None' if store is None else 'a class'}; {_REMEDY}")
    lacks = [name for name in METHODS if not callable(getattr(store, name, None))]
    if not isinstance(getattr(store, "reach", None), Reach):
        lacks.append("reach")
    if lacks:
        of, parts = type(store).__name__, ", ".join(lacks)
        raise ConfigurationError(f"store= is a {of}, which lacks {parts}; see mcp_sessions.stores.Store")
    return store


class _TimeoutStore(Delegating):
    """Another store, none of whose calls takes longer than it may.

    Every method raises `StoreUnavailable` when its time is over (`store_timeout`), or the other store raised an error
    that is not of this package (`store_error`). Whether a change was made is then unknown.

    A store may have a method `knows_live(claims, is_use=...)`: whether a session is known to live without a question.
    """

    def __init__(self, store: Store, *, seconds: float, background_timeout: float = 5.0) -> None:
        """Give one round trip so many seconds, and what no request waits for those in the background, or more."""
        super().__init__(store)
        background = max(seconds, background_timeout)
        self._limits = {name: trips * seconds if trips else background for name, trips in _ROUND_TRIPS.items()}
        for name in _CHANGES:
            self._limits[name] += _told(store, "patience", 0.0)
        self._reopening = 3 * seconds
        self.where: str = _told(store, "where", type(store).__name__)
        self._noted: dict[str, float] = {}  # when each fault was logged last
        self._knows_live: Callable[..., bool] = getattr(store, "knows_live", lambda *_, **__: False)

    async def open(self) -> None:
        limit, self._limits["open"] = self._limits["open"], self._reopening
        await self._within(limit, self._store.open, (), {})

    def status_now(self, claims: Claims) -> Standing | None:
        """Return the same as `status` where no question is needed."""
        return LIVE if self._knows_live(claims) else None

    async def status(self, claims: Claims) -> Standing:
        return self.status_now(claims) or await self._call("status", (claims,), {})

    async def statuses(self, claims: Sequence[Claims]) -> list[Standing]:
        if all(map(self._knows_live, claims)):
            return [LIVE] * len(claims)
        found: list[Standing] = await self._call("statuses", (claims,), {})
        return found

    def purge(self, *refs: str) -> Any:
        """Give a page of the sweeper's, which no request waits for, more time than a request's one."""
        return self._within(self._limits["purge" if len(refs) == 1 else "claim_ended"], self._store.purge, refs, {})

    async def touch(self, claims: Claims, *, idle_timeout: int | None) -> Standing:
        is_known = self._knows_live(claims, is_use=True)
        return LIVE if is_known else await self._call("touch", (claims,), {"idle_timeout": idle_timeout})

    def _call(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return self._within(self._limits[name], getattr(self._store, name), args, kwargs)

    async def _within(
        self, limit: float, call: Callable[..., Awaitable[Any]], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        fault: StoreUnavailable | None = None
        try:
            with hidden(), anyio.CancelScope() as scope, _Timeout(scope, limit):
                return await call(*args, **kwargs)
        except StoreUnavailable as error:
            self._note(error)
            raise
        except MCPSessionsError:
            raise
        except TimeoutError:
            """The driver gave up first."""
        except Exception as error:  # noqa: BLE001  # whatever a driver or a foreign store raises
            kind = type(error)
            fault = StoreUnavailable("store_error", cause=f"{kind.__module__}.{kind.__qualname__}")
        fault = fault or StoreUnavailable("store_timeout", cause=f"no answer within {limit:g} s")
        self._note(fault)
        raise fault from None

    def _note(self, fault: StoreUnavailable) -> None:
        """Log a fault with the place and the cause, each kind once a minute."""
        now = time.monotonic()
        if not now < self._noted.get(fault.reason, -math.inf) + _MINUTE:
            self._noted[fault.reason] = now
            _logger.warning("the session store fails (%s): %s: %s", fault.reason, self.where, fault.cause)

    def __repr__(self) -> str:
        return f"<TimeoutStore of {type(self._store).__name__}>"


def _told(store: object, name: str, otherwise: _T) -> _T:
    """Return an attribute that a store may have, and a foreign one may have with another meaning."""
    value = getattr(store, name, otherwise)
    return value if type(value) is type(otherwise) else otherwise


class _Timeout:
    """Cancels a scope when its time is over, counted only while its answer could arrive.

    A worker that is short of a processor handles everything late: a timer and the answer that came long before it, in
    the same moment. So the time is counted in steps, none of which begins before the event loop has come round once
    more. Trio, which has no timers of this kind, counts it in one.
    """

    __slots__ = ("_left", "_loop", "_scope", "_seconds", "_timer")

    def __init__(self, scope: anyio.CancelScope, seconds: float) -> None:
        self._scope = scope
        self._seconds = seconds
        self._left = _STEPS
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:
            self._scope.deadline = anyio.current_time() + self._seconds
        else:
            self._start()

    def __exit__(self, *_error: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _start(self) -> None:
        self._timer = self._loop.call_later(self._seconds / _STEPS, self._step)

    def _step(self) -> None:
        self._left -= 1
        if self._left:
            self._start()
        else:
            self._scope.cancel()


def __getattr__(name: str) -> Any:
    if name not in _WITH_DRIVER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_WITH_DRIVER[name]}", __name__), name)
