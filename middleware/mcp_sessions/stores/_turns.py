"""Turns of parallel updates of one value: those of one process go to the store together.

Optimistic updates of one value spoil each other: of 64 that read it, one gets through. So one caller at a time commits
for all that came meanwhile. Between processes the store decides, and who got through against others leaves them some
time, by chance, before the next batch.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from .._errors import StoreUnavailable

Change = TypeVar("Change")
Place = tuple[str, str]


class _Waiting:
    """A caller that waits until its change is committed, or until it is its turn to commit."""

    __slots__ = ("change", "error", "leads", "pause", "woken")

    def __init__(self, change: object) -> None:
        self.change = change
        self.error: Exception | None = None
        self.leads = False
        self.pause = 0.0  # seconds
        self.woken = anyio.Event()


class Turns:
    """The updates that are under way in one process."""

    def __init__(self) -> None:
        self._waiting: dict[Place, deque[_Waiting]] = {}  # behind the one that commits

    async def take(self, place: Place, change: Change, commit: Callable[[list[Change]], Awaitable[int]]) -> None:
        """Commit a change, alone or with others of its place.

        Args:
            place: What is changed: a session, and a name in its data.
            change: The change.
            commit: Makes changes in their order, and returns how many times it had to try.

        Raises:
            Exception: What `commit` raised.
            StoreUnavailable: The caller that committed this change was cancelled: it may have been made.
        """
        queue = self._waiting.get(place)
        if queue is None:
            self._waiting[place] = deque()
            await self._lead(place, change, commit)
            return
        own = _Waiting(change)
        queue.append(own)
        try:
            await own.woken.wait()
            if own.pause:
                await anyio.sleep(own.pause)
        except BaseException:
            if own.leads:
                self._pass_on(place, 0.0)
            elif own in queue:
                queue.remove(own)
            raise
        if own.leads:
            await self._lead(place, change, commit)
        elif own.error is not None:
            raise own.error

    async def _lead(self, place: Place, change: Change, commit: Callable[[list[Change]], Awaitable[int]]) -> None:
        queue = self._waiting[place]
        others = [*queue]
        queue.clear()
        error: Exception | None = StoreUnavailable("store_timeout", cause="the caller that asked for all has left")
        pause, began = 0.0, anyio.current_time()
        try:
            with anyio.CancelScope(shield=bool(others)):
                tries = await commit([change, *(other.change for other in others)])  # type: ignore[list-item]
            error = None
            if tries > 1:
                pause = (anyio.current_time() - began) * random.random()  # noqa: S311  # no secret
        except Exception as raised:
            error = raised
            raise
        finally:
            for other in others:
                other.error = error
                other.woken.set()
            self._pass_on(place, pause)

    def _pass_on(self, place: Place, pause: float) -> None:
        queue = self._waiting[place]
        if queue:
            following = queue.popleft()
            following.leads, following.pause = True, pause
            following.woken.set()
        else:
            del self._waiting[place]
