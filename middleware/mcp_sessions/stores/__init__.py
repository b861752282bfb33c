"""Stores of revocations, records and session data, and what a store of your own needs.

`make` turns the `store=` option into a store whose calls end in time. A driver is imported only where it is asked for.
No text here or in the log repeats an option's value or a driver's words, since a URL may hold a password.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from .._errors import ConfigurationError
from .._refusals import refusal
from .._session.claims import Claims
from .._session.confidential import confidential
from .._session.data import Namespace
from ._base import (
    FIRST,
    METHODS,
    STATE_KEY,
    VALUE_COST,
    Ended,
    Facts,
    Found,
    Position,
    Record,
    SessionStatus,
    Store,
    StoreScope,
    check_principal,
    check_size,
    checked_add,
    entry_size,
    idle_at,
    is_touch_due,
    status_of,
    status_with_idle,
)
from ._memory import MemoryStore
from ._timeout import WRITE_TIMEOUT, TimeoutStore

if TYPE_CHECKING:
    from ._postgres import PostgresStore
    from ._redis import RedisStore
    from ._sqlite import SQLiteStore

__all__ = [
    "FIRST",
    "STATE_KEY",
    "VALUE_COST",
    "Claims",
    "Ended",
    "Facts",
    "Found",
    "MemoryStore",
    "Namespace",
    "Position",
    "PostgresStore",
    "Record",
    "RedisStore",
    "SQLiteStore",
    "SessionStatus",
    "Store",
    "StoreScope",
    "check_principal",
    "check_size",
    "checked_add",
    "entry_size",
    "idle_at",
    "is_touch_due",
    "refusal",
    "status_of",
    "status_with_idle",
]
_LAZY_EXPORTS: Final = {"PostgresStore": "_postgres", "RedisStore": "_redis", "SQLiteStore": "_sqlite"}

_Clock = Callable[[], float]
_REMEDY: Final = (
    "use 'memory:' (one process), 'sqlite:PATH' (one machine), 'redis://HOST:PORT/DATABASE' or its forms 'rediss://', "
    "'unix://', 'redis+cluster://' and 'redis+sentinel://', or 'postgresql://USER@HOST/DATABASE' (many machines), or "
    "an object that is a mcp_sessions.stores.Store"
)


@confidential
def make(store: object, *, clock: _Clock, timeout: float, write_timeout: float = WRITE_TIMEOUT) -> Store:
    """Return the store that an option names.

    Args:
        store: `"memory:"`, `"sqlite:PATH"`, a Redis, Valkey or PostgreSQL URL, or an object that is a store.
        clock: Unix seconds.
        timeout: Seconds within which each call of the store ends; one in this process's memory needs none.
        write_timeout: Seconds within which a change of a store on this machine's disk ends.

    Raises:
        ConfigurationError: It names none, or the object lacks a part of the contract; the message says the remedy.
    """
    made = _from_name(store, clock, timeout, write_timeout) if isinstance(store, str) else _checked(store)
    if isinstance(made, (MemoryStore, TimeoutStore)):
        return made
    return TimeoutStore(made, seconds=timeout, write_seconds=write_timeout)


def _from_name(name: str, clock: _Clock, timeout: float, write_timeout: float) -> Store:
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

        return SQLiteStore(path, clock=clock, busy_timeout=write_timeout)
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
    if not isinstance(getattr(store, "scope", None), StoreScope):
        lacks.append("scope")
    if lacks:
        of, parts = type(store).__name__, ", ".join(lacks)
        raise ConfigurationError(f"store= is a {of}, which lacks {parts}; see mcp_sessions.stores.Store")
    return store


def __getattr__(name: str) -> Any:
    if name not in _LAZY_EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_LAZY_EXPORTS[name]}", __name__), name)
