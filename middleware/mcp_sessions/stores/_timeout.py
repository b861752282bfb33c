"""Every call of a store ends in time, and raises only errors of this package.

A store across a network may hang, and a foreign one may raise anything: what is not an error of this package becomes
`StoreUnavailable`, which a caller never takes for "no". With `freshness=`, a recent LIVE serves again: a request needs
no round trip, and a session that another worker ended is accepted here for so long.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, ParamSpec, TypeVar

import anyio

from .._errors import ConfigurationError, MCPSessionsError, StoreFull, StoreUnavailable
from .._session.claims import Claims
from .._session.confidential import forget
from .._session.data import Namespace
from ._base import LIVE, Ended, Found, Record, Store, StoreScope, StoreUsage, log_full, logger
from ._minute_log import MinuteLog
from ._threads import suppress_instrumentation

P = ParamSpec("P")
T = TypeVar("T")
BACKGROUND_TIMEOUT: Final = 5.0  # seconds for calls that no request waits for
_STEPS: Final = 10  # times that the event loop comes round; an answer needs five or so from the socket to its caller
_MAX_FRESHNESS: Final = 5.0  # seconds
_MAX_RECENT: Final = 100_000  # sessions


class TimeoutStore:
    """Another store, none of whose calls takes longer than it may.

    Every method raises `StoreUnavailable` when its time is over (`store_timeout`), or the other store raised an error
    that is not of this package (`store_error`). Whether a change was made is then unknown.

    Args:
        store: The other store. If it has a `freshness`, its answers serve for so many seconds.
        seconds: For a question, and for a change of data. What may need several answers has three times as long.
        background_timeout: Seconds for what no request waits for: start, stop, sweeping, and questions from outside.
    """

    def __init__(self, store: Store, *, seconds: float, background_timeout: float = BACKGROUND_TIMEOUT) -> None:
        self._store = store
        self._one, self._three = seconds, 3 * seconds
        self._background = max(seconds, background_timeout)
        self._was_opened = False
        self._freshness = _optional_attr(store, "freshness", 0.0)
        self._live_until: dict[str, float] = {}  # sessions that are taken for live, by the monotonic clock
        self._endings = 0  # sessions that this worker has ended
        self.location: str = _optional_attr(store, "location", type(store).__name__)
        self.fault: str | None = None  # why it did not answer when it was last asked
        self.last_fault = (-math.inf, "")  # when it last failed, by `perf_counter`, and why
        self._log = MinuteLog()

    @property
    def scope(self) -> StoreScope:
        return self._store.scope

    async def open(self) -> None:
        limit = self._three if self._was_opened else self._background  # a later one is a request's
        self._was_opened = True
        await self._within(limit, self._store.open)

    async def close(self) -> None:
        await self._within(self._background, self._store.close)

    async def look_up(self, *claims: Claims, **options: Any) -> list[Found]:
        if "idle_timeout" in options:
            options["idle_timeout"] = self._prolonged(options["idle_timeout"])
        return await self._within(self._one, self._store.look_up, *claims, **options)

    async def look_up_recent(self, claims: Claims, *, state: bool = False, **options: Any) -> list[Found]:
        """Return what `look_up` does, or that the store has called the session LIVE a moment ago."""
        asked_at, endings = time.monotonic(), self._endings
        if not state and asked_at < self._live_until.get(claims.ref, -math.inf):
            return [Found(LIVE)]
        found = await self.look_up(claims, state=state, **options)
        # What ended meanwhile may have been live when the store was asked.
        if self._freshness and found[0].status is LIVE and endings == self._endings:
            if len(self._live_until) >= _MAX_RECENT:
                self._live_until.clear()
            self._live_until[claims.ref] = asked_at + self._freshness
        return found

    async def revoke(self, record: Record, **options: Any) -> bool:
        try:
            return await self._within(self._three, self._store.revoke, record, **options)
        finally:
            self._endings += 1
            self._live_until.pop(record.ref, None)

    async def revoke_before(self, cutoff_time: float, **of: Any) -> None:
        try:
            await self._within(self._background, self._store.revoke_before, cutoff_time, **of)
        finally:
            self._endings += 1
            self._live_until.clear()

    async def register_at_epoch(self, claims: Claims) -> None:
        await self._within(self._three, self._store.register_at_epoch, claims)

    async def register(self, record: Record, **options: Any) -> None:
        await self._within(self._three, self._store.register, record, **options)

    async def get(self, ref: str) -> Record | None:
        return await self._within(self._background, self._store.get, ref)

    async def list_sessions(self, *, subject: str | None = None, **page: Any) -> list[Record]:
        limit = self._background if subject is None else self._three  # that of one principal is a request's
        return await self._within(limit, self._store.list_sessions, subject=subject, **page)

    async def count(self, *, audience: str) -> int:
        return await self._within(self._background, self._store.count, audience=audience)

    async def claim_ended(self, *, idle_timeout: int | None, **options: Any) -> list[Ended]:
        options["idle_timeout"] = self._prolonged(idle_timeout)
        return await self._within(self._background, self._store.claim_ended, **options)

    async def purge(self, *refs: str) -> None:
        limit = self._three if len(refs) == 1 else self._background  # a page of the sweeper's
        await self._within(limit, self._store.purge, *refs)

    async def read(self, namespace: Namespace, key: str) -> bytes | None:
        return await self._within(self._one, self._store.read, namespace, key)

    async def write(self, namespace: Namespace, key: str, value: bytes | None, **options: Any) -> None:
        await self._within(self._one, self._store.write, namespace, key, value, **options)

    async def compare_and_swap(self, namespace: Namespace, key: str, old: bytes | None, new: bytes | None) -> bool:
        return await self._within(self._one, self._store.compare_and_swap, namespace, key, old, new)

    async def add(self, namespace: Namespace, key: str, by: int) -> int:
        return await self._within(self._one, self._store.add, namespace, key, by)

    async def copy(self, namespace: Namespace, target: Namespace) -> None:
        await self._within(self._three, self._store.copy, namespace, target)

    def _prolonged(self, idle_timeout: int | None) -> int | None:
        """Add the seconds in which no use is noted: a session is idle later, never sooner."""
        return None if idle_timeout is None else idle_timeout + math.ceil(self._freshness)

    async def _within(self, seconds: float, call: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            with suppress_instrumentation(), _time_limit(seconds):
                answer = await call(*args, **kwargs)
        except StoreUnavailable as error:
            forget(error)  # in a driver's frames there is the password
            self._note(error)
            if isinstance(error, StoreFull):
                await self._log_usage()
            raise
        except ConfigurationError as error:
            if call == self._store.open:  # whose caller shows the remedy
                forget(error)
                raise
            fault = StoreUnavailable("store_misconfigured", cause=str(error))
        except MCPSessionsError:
            raise
        except TimeoutError:  # ours, or the driver gave up first
            fault = StoreUnavailable("store_timeout", cause=f"no answer within {seconds:g} s")
        except Exception as error:  # noqa: BLE001  # whatever a driver or a foreign store raises
            fault = StoreUnavailable("store_error", cause=f"{type(error).__module__}.{type(error).__qualname__}")
        else:
            self.fault = None
            return answer
        self._note(fault)
        raise fault from None

    async def _usage(self) -> StoreUsage | None:
        """Return what fills the store, or None if it does not say so."""
        usage = getattr(self._store, "usage", None)
        return None if usage is None else await self._within(self._background, usage)

    async def _log_usage(self) -> None:
        """Log what fills a full store, where the store says so in time."""
        usage = getattr(self._store, "usage", None)
        if usage is not None and self._log.is_due("usage"):
            with suppress(Exception), anyio.move_on_after(self._one):
                log_full(await usage())

    def _note(self, fault: StoreUnavailable) -> None:
        """Keep the last fault, and log each kind once a minute."""
        self.fault = None if isinstance(fault, StoreFull) else fault.reason
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


def _optional_attr(store: object, name: str, otherwise: T) -> T:
    """Return an attribute that a store may have, and a foreign one may have with another meaning."""
    value = getattr(store, name, otherwise)
    return value if type(value) is type(otherwise) else otherwise


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise `TimeoutError` where a block takes longer, counted only while its answer could arrive.

    An event loop that was held up handles a timer and the answer that came long before it in the same moment. So the
    time is counted in steps, none of which begins before the loop has come round once more. Trio counts it in one.
    """
    with anyio.CancelScope() as scope:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            scope.deadline = anyio.current_time() + seconds
            yield
        else:
            timer: asyncio.TimerHandle

            def wait(steps: int) -> None:
                nonlocal timer
                timer = loop.call_later(seconds / _STEPS, *((wait, steps - 1) if steps > 1 else (scope.cancel,)))

            wait(_STEPS)
            try:
                yield
            finally:
                timer.cancel()
    if scope.cancelled_caught:
        raise TimeoutError
