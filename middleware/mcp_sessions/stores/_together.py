"""Look-ups of many requests as one question: those that come while others are under way are asked together.

A question about 200 sessions costs a store little more than one about a single session, so a burst of requests needs a
few questions, and no connection is waited for. No background task is needed: one of the requests that wait asks for all
of them. If it is cancelled, another one asks.
"""

from __future__ import annotations

import math
import time
from collections import deque
from copy import copy
from typing import TYPE_CHECKING, Final

import anyio

from .._session.claims import Claims
from ._base import LIVE, Found
from ._threads import Loop, running_loop

if TYPE_CHECKING:
    from ._base import Store

QUESTIONS: Final = 4  # under way at once in one event loop
MAX_CLAIMS: Final = 500  # of one question, as its answer has to come within `store_timeout`
_MAX_RECENT: Final = 100_000  # sessions


class Recent:
    """Sessions that the store has called LIVE a moment ago, which a store's `freshness=` allows.

    Args:
        seconds: For how long that counts; 0 for never.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds: Final = seconds
        self._live_until: dict[str, float] = {}  # by the monotonic clock
        self._endings = 0  # sessions that this worker has ended

    def is_live(self, claims: Claims) -> bool:
        """Return True if a session was LIVE a moment ago."""
        return time.monotonic() < self._live_until.get(claims.ref, -math.inf)

    def asked(self) -> tuple[float, int]:
        """Return what `note` needs of the moment when the store is asked."""
        return time.monotonic(), self._endings

    def note(self, claims: Claims, found: Found, asked: tuple[float, int]) -> None:
        """Remember a LIVE session, unless one has ended since the store was asked: it may be this one."""
        asked_at, endings = asked
        if self.seconds and found.status is LIVE and endings == self._endings:
            if len(self._live_until) >= _MAX_RECENT:
                self._live_until.clear()
            self._live_until[claims.ref] = asked_at + self.seconds

    def forget(self, ref: str | None = None) -> None:
        """Forget a session that this worker has ended, or all (None)."""
        self._endings += 1
        if ref is None:
            self._live_until.clear()
        else:
            self._live_until.pop(ref, None)


class _Waiting:
    """A look-up that waits: for its answer, or for its turn to ask for others, too."""

    __slots__ = ("batch", "claims", "error", "found", "is_cancelled", "state", "turn")

    def __init__(self, claims: tuple[Claims, ...], *, state: bool) -> None:
        self.claims = claims
        self.state = state
        self.turn = anyio.Event()
        self.batch: list[_Waiting] = []  # for whom this one has to ask, itself included
        self.found: list[Found] = []
        self.error: Exception | None = None
        self.is_cancelled = False


class _Queue:
    """The look-ups of one event loop."""

    def __init__(self) -> None:
        self.under_way = 0
        self.waiting: deque[_Waiting] = deque()

    def next_question(self) -> None:
        """Let the first that wait be asked about, in place of a question that has its answer."""
        batch, size = list[_Waiting](), 0
        while self.waiting and (not batch or size + len(self.waiting[0].claims) <= MAX_CLAIMS):
            one = self.waiting.popleft()
            if not one.is_cancelled:
                batch.append(one)
                size += len(one.claims)
        if batch:
            batch[0].batch = batch
            batch[0].turn.set()
        else:
            self.under_way -= 1

    def leave(self, one: _Waiting) -> None:
        """Drop a look-up whose request was cancelled. Another one asks in its place if it had to ask."""
        one.is_cancelled = True
        if one.batch:
            self.waiting.extendleft(reversed(one.batch))
            self.next_question()


class LookUps:
    """Asks a store about sessions; questions that come at the same time are sent as one.

    Args:
        store: The store, whose calls end in time. Time that is spent waiting here does not count.
        touch: Whether the sessions are recorded and are used now, as in `Store.look_up`.
        idle_timeout: As in `Store.look_up`.
        recent: Sessions of which the store need not be asked again if no state is needed.
    """

    def __init__(
        self, store: Store, *, touch: bool = False, idle_timeout: int | None = None, recent: Recent | None = None
    ) -> None:
        self._store = store
        self._touch, self._idle_timeout = touch, idle_timeout
        self._recent = recent
        self._here: tuple[Loop, _Queue] | None = None  # of the event loop that asked last

    async def ask(self, *claims: Claims, state: bool = False) -> list[Found]:
        """Return what `Store.look_up` does.

        Raises:
            StoreUnavailable: The store did not answer.
        """
        recent = self._recent
        if recent is None:
            return await self._in_turn(claims, state=state)
        if not state and all(map(recent.is_live, claims)):
            return [Found(LIVE) for _ in claims]
        asked = recent.asked()
        answers = await self._in_turn(claims, state=state)
        for one, found in zip(claims, answers, strict=True):
            recent.note(one, found, asked)
        return answers

    def _queue(self) -> _Queue:
        loop = running_loop()
        if self._here is None or self._here[0] != loop:
            self._here = loop, _Queue()
        return self._here[1]

    async def _in_turn(self, claims: tuple[Claims, ...], *, state: bool) -> list[Found]:
        """Ask now, or together with others if as many questions as may be are under way."""
        queue = self._queue()
        if queue.under_way < QUESTIONS:
            queue.under_way += 1
            try:
                return await self._ask(claims, state=state)
            finally:
                queue.next_question()
        one = _Waiting(claims, state=state)
        queue.waiting.append(one)
        try:
            await one.turn.wait()
            if one.batch:
                await self._ask_for(one.batch, queue)
        except BaseException:
            queue.leave(one)
            raise
        if one.error is not None:
            raise one.error
        return one.found

    async def _ask_for(self, batch: list[_Waiting], queue: _Queue) -> None:
        """Ask one question for look-ups that wait, and wake them. Each gets a separate error."""
        claims = tuple(claims for one in batch for claims in one.claims)
        try:
            answers = iter(await self._ask(claims, state=any(one.state for one in batch)))
            for one in batch:
                one.found = [next(answers) for _ in one.claims]
        except Exception as error:  # noqa: BLE001  # each of them raises it
            for one in batch:
                one.error = copy(error)
        batch[0].batch = []
        for one in batch[1:]:
            one.turn.set()
        queue.next_question()

    async def _ask(self, claims: tuple[Claims, ...], *, state: bool) -> list[Found]:
        return await self._store.look_up(*claims, state=state, touch=self._touch, idle_timeout=self._idle_timeout)
