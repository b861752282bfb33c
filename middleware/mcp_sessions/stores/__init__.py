"""Stores of revocations, records and session data; `make` turns the `store=` option into one.

A driver is imported only where it is asked for, and a URL may hold a password, so no error repeats what was given.
Nothing is kept for a live session, unless sessions are tracked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ..errors import ConfigurationError
from .base import METHODS, Reach, Store
from .memory import MemoryStore
from .timeout import TimeoutStore

Clock = Callable[[], float]
REMEDY: Final = (
    "use 'memory:' (one process), 'sqlite:PATH' (one machine), 'redis://HOST:PORT/DATABASE' or its forms 'rediss://', "
    "'unix://' and 'redis+cluster://' (many machines), or an object that is a mcp_sessions.stores.base.Store"
)


def make(store: object, *, clock: Clock, timeout: float) -> Store:
    """Return the store that an option names.

    Args:
        store: `"memory:"`, `"sqlite:PATH"`, a Redis or Valkey URL, or an object that is a store.
        clock: Unix seconds.
        timeout: Seconds within which each call of the store ends; one in this process's memory needs none.

    Raises:
        ConfigurationError: It names none, or the object lacks a part of the contract; the message says the remedy.
    """
    made = _from_name(store, clock, timeout) if isinstance(store, str) else _checked(store)
    return made if isinstance(made, (MemoryStore, TimeoutStore)) else TimeoutStore(made, seconds=timeout)


def _sqlite(name: str, clock: Clock, timeout: float) -> Store:
    path = name.removeprefix("sqlite:")
    # "//" begins a URL in other libraries, where three slashes mean a relative path and four an absolute one.
    if not path or path.startswith(("//", ":")):
        raise ConfigurationError("store='sqlite:PATH' takes a plain path, as in 'sqlite:/var/lib/app/sessions.db'")
    from .sqlite import SQLiteStore

    return SQLiteStore(path, clock=clock, busy_timeout=timeout)


def _from_name(name: str, clock: Clock, timeout: float) -> Store:
    if name == "memory:":
        return MemoryStore(clock=clock)
    if name.startswith("memory:"):
        raise ConfigurationError("store='memory:' takes nothing after the colon")
    if name.startswith("sqlite:"):
        return _sqlite(name, clock, timeout)
    if name.startswith(("redis://", "rediss://", "unix://", "redis+cluster://")):
        from .redis import RedisStore

        return RedisStore(name, clock=clock, timeout=timeout)
    raise ConfigurationError(f"store= names no store; {REMEDY}")


def _checked(store: Any) -> Store:
    if store is None or isinstance(store, type):
        raise ConfigurationError(f"store= takes a store, not {'None' if store is None else 'a class'}; {REMEDY}")
    lacks = [name for name in METHODS if not callable(getattr(store, name, None))]
    if not isinstance(getattr(store, "reach", None), Reach):
        lacks.append("reach")
    if lacks:
        raise ConfigurationError(
            f"store= is a {type(store).__name__}, which lacks {', '.join(lacks)}; see mcp_sessions.stores.base.Store"
        )
    checked: Store = store
    return checked
