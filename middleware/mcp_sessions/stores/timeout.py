"""A store whose calls end in time, and fail in one way.

A store across a network may hang, and one that somebody else wrote may raise anything. Here every call
returns within a number of seconds: few where a request waits for one answer, thrice as many for what takes several
of them, and more for what few requests ask or none. What is not an error of this package becomes one: nobody knows,
which a caller never takes for "no". The text of a foreign error is never logged or passed on, since drivers quote
connection addresses, and those hold passwords.

A time limit that counts only while its answer could be heard.

A worker that is short of a processor hears everything late: a timer and the answer that came long before it, in the
same moment. So a limit is counted in steps, none of which begins before the event loop has come round once more. To
wait for something that hangs takes as long as it says; what has answered meanwhile is heard.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Final, ParamSpec, TypeVar

import anyio

from .._session.claims import Claims
from .._session.data import Namespace
from ..errors import MCPSessionsError, StoreUnavailable
from .base import Ended, Reach, Record, Standing, Store

P = ParamSpec("P")
T = TypeVar("T")

SEVERAL: Final = 3  # answers that a call about several things takes at the most
logger = logging.getLogger("mcp_sessions")


class Deadline:
    """Another store, none of whose calls takes longer than it may.

    Raises:
        StoreUnavailable: From every method: the time is over (`store_timeout`), or the other store raised an
            error that is not of this package (`store_error`). Whether a change was made is then unknown.
    """

    def __init__(self, store: Store, *, seconds: float, leisure: float = 5.0) -> None:
        """Args:
        store: The other store.
        seconds: How long it may take to answer; what is about more than one thing, so that it has to answer up to
            three times (`record`, `revoke`, `finish`, `forks`, `sessions`, `copy`), may take three times that.
        leisure: Seconds, unless `seconds` are more, for what no request waits for: the first opening, which is the
            server's start, closing, sweeping, and what is asked from outside. A request that opens the store again,
            since it did not answer then, has no such time.
        """
        self._store = store
        self._seconds = seconds
        self._several = SEVERAL * seconds
        self._leisure = max(seconds, leisure)
        self._opening = self._leisure

    @property
    def reach(self) -> Reach:
        """The other store's."""
        return self._store.reach

    async def open(self) -> None:
        limit, self._opening = self._opening, self._several
        await _within(limit, self._store.open)

    async def close(self) -> None:
        await _within(self._leisure, self._store.close)

    async def status(self, claims: Claims) -> Standing:
        return await _within(self._seconds, self._store.status, claims)

    async def statuses(self, claims: Sequence[Claims]) -> list[Standing]:
        return await _within(self._seconds, self._store.statuses, claims)

    async def revoke(self, ref: str, *, audience: str, expires_at: int, reason: str, lease: float) -> bool:
        return await _within(
            self._several, self._store.revoke, ref, audience=audience, expires_at=expires_at, reason=reason, lease=lease
        )

    async def revoke_before(self, moment: int, *, audience: str, subject: str | None, until: int) -> None:
        await _within(self._leisure, self._store.revoke_before, moment, audience=audience, subject=subject, until=until)

    async def register(self, record: Record) -> None:
        await _within(self._several, self._store.register, record)

    async def touch(self, claims: Claims, *, idle_timeout: int | None) -> Standing:
        return await _within(self._seconds, self._store.touch, claims, idle_timeout=idle_timeout)

    async def sessions(self, subject: str, *, audience: str) -> list[Record]:
        return await _within(self._several, self._store.sessions, subject, audience=audience)

    async def forks(self, root: str) -> list[Record]:
        return await _within(self._several, self._store.forks, root)

    async def find(self, ref: str) -> Record | None:
        return await _within(self._leisure, self._store.find, ref)

    async def claim_ended(self, *, audience: str, idle_timeout: int | None, lease: float, limit: int) -> list[Ended]:
        return await _within(
            self._leisure,
            self._store.claim_ended,
            audience=audience,
            idle_timeout=idle_timeout,
            lease=lease,
            limit=limit,
        )

    async def purge(self, ref: str) -> None:
        await _within(self._several, self._store.purge, ref)

    async def elect(self, worker: str, *, audience: str, seconds: float) -> bool:
        return await _within(self._leisure, self._store.elect, worker, audience=audience, seconds=seconds)

    async def read(self, shelf: Namespace, key: str) -> bytes | None:
        return await _within(self._seconds, self._store.read, shelf, key)

    async def copy(self, shelf: Namespace, target: Namespace) -> None:
        await _within(self._several, self._store.copy, shelf, target)

    async def write(self, shelf: Namespace, key: str, value: bytes | None, *, expires_at: float | None = None) -> None:
        await _within(self._seconds, self._store.write, shelf, key, value, expires_at=expires_at)

    async def compare_and_swap(self, shelf: Namespace, key: str, old: bytes | None, new: bytes | None) -> bool:
        return await _within(self._seconds, self._store.compare_and_swap, shelf, key, old, new)

    async def add(self, shelf: Namespace, key: str, by: int) -> int:
        return await _within(self._seconds, self._store.add, shelf, key, by)

    def __repr__(self) -> str:
        return f"<Deadline of {type(self._store).__name__}>"


async def _within(limit: float, call: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """What a call returns, within so many seconds."""
    try:
        with anyio.CancelScope() as scope, Countdown(scope, limit):
            return await call(*args, **kwargs)
    except MCPSessionsError:
        raise
    except TimeoutError:
        """The driver gave up first."""
    except Exception as error:  # noqa: BLE001  # whatever a driver or somebody else's store raises
        kind = type(error)
        logger.error("the session store failed with %s.%s", kind.__module__, kind.__qualname__)
        raise StoreUnavailable("store_error") from None
    raise StoreUnavailable("store_timeout")


STEPS: Final = 10  # times that the event loop comes round; an answer needs five or so from the socket to who waits


class Countdown:
    """Cancels a scope when its time is over. Trio, which has no timers of this kind, counts it in one step.

    Args:
        scope: The scope.
        seconds: The time.
    """

    __slots__ = ("_left", "_loop", "_scope", "_seconds", "_timer")

    def __init__(self, scope: anyio.CancelScope, seconds: float) -> None:
        self._scope = scope
        self._seconds = seconds
        self._left = STEPS
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:
            self._scope.deadline = anyio.current_time() + self._seconds
        else:
            self._start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _start(self) -> None:
        self._timer = self._loop.call_later(self._seconds / STEPS, self._step)

    def _step(self) -> None:
        self._left -= 1
        if self._left:
            self._start()
        else:
            self._scope.cancel()
