"""Event streams that are open in this process, and the loop that ends them when their session ends.

A session that was ended here takes its streams with it at once; one that another worker ended is found by asking the
store, twice a second and only while such streams are open.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Any, Final, Protocol

import anyio

from .._errors import StoreUnavailable
from .._session.claims import Claims
from ..stores import _base as base
from ..stores._base import Standing, Store

_log: Final = logging.getLogger("mcp_sessions")
INTERVAL: Final = 0.5  # seconds between two questions to the store
BATCH: Final = 500  # sessions in one question, which has to be answered within `store_timeout`

_running: Final[set[asyncio.Task[None]]] = set()  # the event loop keeps weak references only


def start(work: Callable[[], Awaitable[None]]) -> None:
    """Start work that belongs to no request and ends with the event loop; an error in it is logged and ends it."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        import trio

        trio.lowlevel.spawn_system_task(_logged, work, context=Context())
        return
    # A context of its own: the work must not be taken for a part of the request that happened to start it.
    task = Context().run(loop.create_task, _logged(work))
    _running.add(task)
    task.add_done_callback(_running.discard)


async def _logged(work: Callable[[], Awaitable[Any]]) -> None:
    try:
        await work()
    except Exception as error:  # noqa: BLE001  # whatever it is, the server goes on
        _log.error("background work stopped: %s", type(error).__name__)


class Stream(Protocol):
    """One open event stream of a session."""

    @property
    def claims(self) -> Claims:
        """The session that it belongs to."""

    @property
    def survives_end(self) -> bool:
        """Whether it goes on when its session ends: its own request ended it, and still gets its answer."""

    def cancel(self, transport: str | None, request_id: bytes | None) -> None:
        """Expect no answer any more if it answers this request of this transport session of the wrapped server.

        No id means any request.
        """

    async def cut(self) -> None:
        """End it: its session has ended. Raises nothing, and does not wait long for its client."""


class Streams:
    """The open streams of one middleware."""

    def __init__(self, store: Store, *, interval: float = INTERVAL) -> None:
        self._store, self._interval = store, interval
        self._open: dict[str, list[Stream]] = {}
        self._watching = False
        self.is_blind: bool = False
        """Whether the store did not answer when it was last asked how the sessions are."""

    def add(self, stream: Stream) -> None:
        """Register a stream that has opened."""
        self._open.setdefault(stream.claims.ref, []).append(stream)
        if not self._watching:
            self._watching = True
            start(self._watch)

    def remove(self, stream: Stream) -> None:
        """Forget a stream that has closed, or was forgotten before."""
        ref = stream.claims.ref
        left = [other for other in self._open.get(ref, ()) if other is not stream]
        if left:
            self._open[ref] = left
        else:
            self._open.pop(ref, None)

    async def end(self, ref: str) -> None:
        """End the streams of a session that has ended, but for that of the request that ended it."""
        ending = [stream for stream in self._open.get(ref, ()) if not stream.survives_end]
        async with anyio.create_task_group() as group:  # side by side, or slow clients would add up
            for stream in ending:
                self.remove(stream)
                group.start_soon(stream.cut)

    def cancel(self, ref: str | None, transport: str | None, request_id: bytes) -> None:
        """Settle a request that its client has cancelled, in a message that names this session or none."""
        if transport is not None:  # in which a client may use several sessions
            named = [stream for streams in self._open.values() for stream in streams]
        else:  # where there is none either, it could be any client's
            named = self._open.get(ref or "", [])
        for stream in named:
            stream.cancel(transport, request_id)

    def leave(self, ref: str) -> None:
        """Settle all requests of a session that its client ends as it leaves, often without cancelling them."""
        for stream in self._open.get(ref, ()):
            stream.cancel(None, None)

    async def lives(self, claims: Claims) -> bool:
        """Whether a session is still live, or raise `StoreUnavailable`."""
        return await base.status(self._store, claims) is Standing.LIVE

    async def _watch(self) -> None:
        try:
            while self._open:
                await anyio.sleep(self._interval)
                await self._look()
        finally:
            self._watching = False

    async def _look(self) -> None:
        claims = [of_session[0].claims for of_session in self._open.values()]
        for first in range(0, len(claims), BATCH):
            asked = claims[first : first + BATCH]
            try:
                statuses = await base.statuses(self._store, asked)
            except StoreUnavailable:  # what is no answer goes on until the store says otherwise
                self.is_blind = True
                continue
            self.is_blind = False
            for claim, status in zip(asked, statuses, strict=True):
                if status is not Standing.LIVE:
                    await self.end(claim.ref)
