"""Every call of a store ends in time, and raises only errors of this package.

A store across a network may hang, and a foreign one may raise anything: what is not an error of this package becomes
`StoreUnavailable`, which a caller never takes for "no". Only the store's own time counts, neither waiting for one of
its connections nor an event loop that is busy with other requests.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from functools import partial
from typing import Any, Final, TypeVar

import anyio

from .._errors import ConfigurationError, MCPSessionsError, StoreFull, StoreUnavailable
from .._session.confidential import forget
from ._base import METHODS, Store, StoreScope, logger
from ._minute_log import MinuteLog
from ._threads import Loop, running_loop, suppress_instrumentation
from ._together import Recent

T = TypeVar("T")
BACKGROUND_TIMEOUT: Final = 5.0  # seconds for calls that no request waits for
FACTORS: Final = {
    **dict.fromkeys(("look_up", "read", "write", "compare_and_swap", "add"), 1),
    **dict.fromkeys(("revoke", "register_at_epoch", "register", "copy", "list_sessions", "purge"), 3),
}
"""By method, how many times `store_timeout` a call may take. No request waits for any other method."""
WRITES: Final = frozenset(FACTORS) - {"look_up", "read", "list_sessions"}
WRITE_TIMEOUT: Final = 5.0  # seconds; the default of `Limits.write_timeout`
_STEPS: Final = 10  # times that the event loop comes round; an answer needs five or so from the socket to its caller
_MAX_FRESHNESS: Final = 5.0  # seconds
_MANY: Final = 1_000_000  # calls at once, if a store does not say how many it has connections for
_Methods: Any = object  # for type checkers, which do not see the methods that `__init__` makes


class TimeoutStore(_Methods):  # type: ignore[misc]  # of any type
    """Another store, none of whose calls takes longer than it may. It has all methods of `Store`.

    Every method raises `StoreUnavailable` after its time limit (`store_timeout`), or the other store raised an error
    that is not of this package (`store_error`). Whether a change was made is then unknown.

    Args:
        store: The other store. As many calls run at once as it has `connections`, if it says so.
        seconds: For a question, and for a change of data. What may need several answers has three times as long.
        write_seconds: For a change, if the store `writes_to_disk` of this machine, which other processes may keep busy.
        background_timeout: Seconds for what no request waits for: start, stop, sweeping, and questions from outside.

    Attributes:
        recent: Sessions that were live a moment ago, for the seconds of the other store's `freshness`.
        location: Where the other store is, for logs.
        fault: Why it did not answer when it was last asked, or None.
        last_fault: When it last failed, by `perf_counter`, and why.
        on_call: Called after each call with its method, its outcome (`"success"`, `"error"` for an error such as
            `DataTooLarge`, or the reason of a fault) and its seconds as its caller saw them.
    """

    def __init__(
        self,
        store: Store,
        *,
        seconds: float,
        write_seconds: float = WRITE_TIMEOUT,
        background_timeout: float = BACKGROUND_TIMEOUT,
    ) -> None:
        self._store = store
        self._seconds, self._background = seconds, max(seconds, background_timeout)
        self._write_seconds = write_seconds if _optional_attr(store, "writes_to_disk", False) else 0
        self._was_opened = False
        self._connections = _optional_attr(store, "connections", 0) or _MANY
        self._here: tuple[Loop, anyio.Semaphore] | None = None  # the free connections, as the last event loop sees them
        self._failures = 0  # of the last calls, until one succeeded
        self._log = MinuteLog()
        self.recent: Final = Recent(_optional_attr(store, "freshness", 0.0))
        self.location: str = _optional_attr(store, "location", type(store).__name__)
        self.fault: str | None = None
        self.last_fault = (-math.inf, "")
        self.on_call: Callable[[str, str, float], None] | None = None
        for name in METHODS:
            self.__dict__.setdefault(name, partial(self._call, name))

    @property
    def scope(self) -> StoreScope:
        return self._store.scope

    async def _call(self, name: str, *args: Any, **options: Any) -> Any:
        if options.get("idle_timeout") is not None:  # uses that are not noted may end no session sooner
            options["idle_timeout"] += math.ceil(self.recent.seconds)
        free = self._free_connections()
        is_late = free.value == 0  # so that it has to wait, which does not count
        try:
            with self._timed(name):
                async with free:
                    if is_late and self._failures >= self._connections:  # none of the others was answered meanwhile
                        raise StoreUnavailable(self.last_fault[1])
                    return await self._answer(name, self._limit(name, args, options), *args, **options)
        finally:
            if name in {"revoke", "revoke_before"}:
                self.recent.forget(args[0].ref if name == "revoke" else None)

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        """Report the call within the block to `on_call`."""
        started_at, outcome = time.perf_counter(), "error"
        try:
            yield
        except StoreUnavailable as error:
            outcome = error.reason
            raise
        else:
            outcome = "success"
        finally:
            if self.on_call is not None:
                self.on_call(name, outcome, time.perf_counter() - started_at)

    def _free_connections(self) -> anyio.Semaphore:
        loop = running_loop()
        if self._here is None or self._here[0] != loop:
            self._here = loop, anyio.Semaphore(self._connections, fast_acquire=True)
        return self._here[1]

    def _limit(self, name: str, args: tuple[Any, ...], options: dict[str, Any]) -> float:
        """Return the seconds that a call may take."""
        factor = FACTORS.get(name)
        if name == "open":
            factor, self._was_opened = (3 if self._was_opened else None), True  # a later one is a request's
        elif (name == "list_sessions" and options.get("subject") is None) or (name == "purge" and len(args) != 1):
            factor = None  # for an operator, or for the sweeper
        seconds = self._background if factor is None else factor * self._seconds
        return max(seconds, self._write_seconds) if name in WRITES or options.get("touch") else seconds

    async def _answer(self, name: str, seconds: float, *args: Any, **options: Any) -> Any:
        try:
            with suppress_instrumentation(), time_limit(seconds):
                answer = await getattr(self._store, name)(*args, **options)
        except StoreUnavailable as error:
            forget(error)  # in a driver's frames there is the password
            self._note(error)
            raise
        except ConfigurationError as error:
            if name == "open":  # whose caller shows the remedy
                forget(error)
                raise
            fault = StoreUnavailable("store_misconfigured", cause=str(error))
        except MCPSessionsError:
            raise
        except TimeoutError:  # ours, or the driver gave up first
            fault = StoreUnavailable("store_timeout", cause=self._slowness(seconds))
        except Exception as error:  # noqa: BLE001  # whatever a driver or a foreign store raises
            fault = StoreUnavailable("store_error", cause=_cause_of(error))
        else:
            self.fault, self._failures = None, 0
            return answer
        self._note(fault)
        raise fault from None

    def _slowness(self, seconds: float) -> str:
        """Return what took longer than so many seconds, with the remedy."""
        if _optional_attr(self._store, "is_connecting", False):
            return (
                f"connecting takes longer than {seconds:g} s; it goes on, so that later requests may find the store "
                "connected, else raise Limits.store_timeout"
            )
        return f"no answer within {seconds:g} s"

    def _note(self, fault: StoreUnavailable) -> None:
        """Remember the last fault, and log each kind once a minute."""
        self.fault = None if isinstance(fault, StoreFull) else fault.reason
        self._failures += self.fault is not None
        self.last_fault = time.perf_counter(), fault.reason
        if self._log.is_due(fault.reason):
            logger.warning("session store unavailable (%s): %s: %s", fault.reason, self.location, fault.cause)

    def __repr__(self) -> str:
        return f"<TimeoutStore of {type(self._store).__name__}>"


def checked_freshness(value: object) -> float:
    """Return the seconds of the option `freshness=`, also from a URL; `ConfigurationError` if it cannot be used."""
    try:
        seconds = float(value)  # type: ignore[arg-type]  # as it came
    except (TypeError, ValueError):
        seconds = math.nan
    if 0 <= seconds <= _MAX_FRESHNESS:
        return seconds
    raise ConfigurationError(f"freshness= must be a number of seconds from 0 to {_MAX_FRESHNESS:g}")


def _cause_of(error: Exception) -> str:
    """Return what a store raised that is not an error of this package, but not its text, which may hold a password."""
    name = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
    number = error.errno if isinstance(error, OSError) else None
    return f"it raised {name}" if number is None else f"it raised {name} ({os.strerror(number)})"


def _optional_attr(store: object, name: str, otherwise: T) -> T:
    """Return an attribute that a store may have, and a foreign one may have with another meaning."""
    value = getattr(store, name, otherwise)
    return value if type(value) is type(otherwise) else otherwise


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `TimeoutError` if a block takes longer, counting only the time in which its answer could arrive.

    An event loop that was held up handles a timer and the answer that came long before it in the same moment. So the
    time is counted in steps, and the loop has come round once more before the next one begins.
    """
    with anyio.CancelScope() as scope:
        stop = _start_timer(seconds / _STEPS, scope.cancel)
        try:
            yield
        finally:
            stop()
    if scope.cancelled_caught:
        raise TimeoutError


def _start_timer(step: float, ring: Callable[[], object]) -> Callable[[], object]:
    """Call a function after some steps of so many seconds; return what stops that."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return _start_trio_timer(step, ring)
    timer: asyncio.TimerHandle

    def wait(steps: int) -> None:
        nonlocal timer
        timer = loop.call_later(step, *((wait, steps - 1) if steps > 1 else (ring,)))

    def stop() -> None:
        timer.cancel()

    wait(_STEPS)
    return stop


def _start_trio_timer(step: float, ring: Callable[[], object]) -> Callable[[], object]:
    import trio

    scope = trio.CancelScope()

    async def wait() -> None:
        with scope:
            for _ in range(_STEPS):
                await trio.sleep(step)
            ring()

    trio.lowlevel.spawn_system_task(wait, context=Context())
    return scope.cancel
