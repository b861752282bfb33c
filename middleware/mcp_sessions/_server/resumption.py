"""Calls that are under way in this process, how they end with their sessions, and how broken streams are resumed.

A session that is ended here takes its calls with it at once. One that ended elsewhere, or expired, is found by asking
the store a few times a second, only while calls take so long. Event ids leave signed, so any worker knows whose they
are. A server with an event store runs a call to its end without its client. So the state of the call's session stays
open until the answer passes here, at last in the resumed stream; a client that never comes back, or resumes the stream
on another worker, loses the call's changes of the state, but not those of `session.data`.
Source: MCP 2025-11-25, Streamable HTTP, "Resumability and Redelivery".
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from secrets import token_bytes
from typing import Any, Final, Protocol
from weakref import WeakValueDictionary

import anyio
import msgspec
from anyio.lowlevel import checkpoint

from .._errors import Refusal, SessionEnded, SessionExpired, SessionNotFound, StoreUnavailable
from .._protocol import rewrite
from .._session.claims import Claims, RedactedRepr
from .._session.session import Session
from ..stores._base import LIVE, SessionStatus, Store
from .background import start

INTERVAL: Final = 0.4  # seconds between two questions to the store; each call is in the second at the latest
BATCH: Final = 500  # sessions in one question, which has to be answered within `store_timeout`
ROUNDS: Final = 10  # times that the event loop comes round until a client that reads has the end of its response
MAX_ENDING: Final = 5.0  # seconds for which the end of a response waits to learn whether its session ends
MAX_CALLS: Final = 10_000  # whose session is kept for a resumed stream; the oldest goes first


_log: Final = logging.getLogger("mcp_sessions")


class OpenResponse(Protocol):
    """A response that has not ended."""

    def terminate(self, refusal: Refusal) -> None:
        """End it, without waiting for its client."""


class Streams:
    """The responses under way in sessions of one middleware, by the `ref` of their sessions."""

    def __init__(self, store: Store, clock: Callable[[], float], *, interval: float = INTERVAL) -> None:
        self._store, self._clock, self._interval = store, clock, interval
        self._open: dict[str, dict[OpenResponse, Call]] = {}
        self._ending: dict[str, list[anyio.Event]] = {}  # sessions that may be about to end
        self._checks = 0  # so far
        self._polling = False

    def add(self, call: Call, response: OpenResponse) -> None:
        call.checks = self._checks
        for claims in call.sessions:
            self._open.setdefault(claims.ref, {})[response] = call
        if not self._polling:
            self._polling = True
            start(self._poll)

    def remove(self, call: Call, response: OpenResponse) -> None:
        for claims in call.sessions:
            of_session = self._open.get(claims.ref, {})
            of_session.pop(response, None)
            if not of_session:
                self._open.pop(claims.ref, None)

    async def end(self, ref: str) -> None:
        """End the responses of a session that has ended, but for that of the request that ended it.

        When this returns, clients that read have received the end. The middleware does not wait for other clients.
        """
        if self._terminate(ref, SessionEnded(ref=ref)):
            for _ in range(ROUNDS):
                await checkpoint()

    def _terminate(self, ref: str, refusal: Refusal) -> bool:
        ended = [one for one in self._open.get(ref, {}).items() if not one[1].ended_its_session]
        for response, call in ended:
            self.remove(call, response)
            response.terminate(copy(refusal))  # a copy for each, which notes what its client learns
        return bool(ended)

    @contextmanager
    def ending(self, ref: str) -> Iterator[None]:
        """Let what the server ends unanswered within the block wait: its session is about to end, or is not."""
        decided = anyio.Event()
        self._ending.setdefault(ref, []).append(decided)
        try:
            yield
        finally:
            decided.set()
            self._ending[ref].remove(decided)
            if not self._ending[ref]:
                del self._ending[ref]

    def is_being_ended(self, call: Call) -> bool:
        """Return whether a session of a call may be about to end."""
        return bool(self._ending) and any(claims.ref in self._ending for claims in call.sessions)

    async def decided(self, call: Call) -> None:
        """Wait while it is open whether a session of a call ends."""
        with anyio.move_on_after(MAX_ENDING):  # a server may let a DELETE wait for what waits here
            for claims in call.sessions:
                while undecided := self._ending.get(claims.ref):
                    await undecided[-1].wait()

    def cancel(self, ref: str | None, server_id: str | None, request_id: bytes) -> None:
        """Settle a request that its client has cancelled, in a message that names this session, or no session."""
        # A client may use several sessions in one transport session. A message that names neither may be any client's.
        refs = [ref or ""] if server_id is None else [*self._open]
        for call in (call for each in refs for call in self._open.get(each, {}).values()):
            if call.id and call.server_id == server_id and rewrite.same_id(call.id, request_id):
                call.answered = True

    async def _poll(self) -> None:
        try:
            while self._open:
                await anyio.sleep(self._interval)
                await self._check_once()
        finally:
            self._polling = False

    async def _check_once(self) -> None:
        checks, self._checks = self._checks, self._checks + 1
        under_way = [(ref, [*of_session.values()]) for ref, of_session in self._open.items()]
        asked_about = [(ref, one[0]) for ref, one in under_way if any(call.checks < checks for call in one)]
        claims = [next(claims for claims in one.sessions if claims.ref == ref) for ref, one in asked_about]
        now = self._clock()
        for expired in [claim for claim in claims if not now < claim.expires_at]:
            self._terminate(expired.ref, SessionExpired(ref=expired.ref))
        live = [claim for claim in claims if now < claim.expires_at]
        for first in range(0, len(live), BATCH):
            asked = live[first : first + BATCH]
            try:
                answers = await self._store.look_up(*asked)
            except StoreUnavailable:  # without an answer they go on
                continue
            except Exception as error:  # noqa: BLE001  # a store of the application's may raise anything
                _log.error("calls under way not checked, the store raised %s: they go on", type(error).__name__)
                continue
            for claim, found in zip(asked, answers, strict=True):
                if found.status is not LIVE:
                    self._terminate(claim.ref, refusal_for_status(found.status, claim))


def refusal_for_status(status: SessionStatus, claims: Claims) -> SessionNotFound:
    if status in {SessionStatus.UNKNOWN, SessionStatus.UNRECORDED}:
        return SessionNotFound("store_lost", ref=claims.ref)
    return SessionExpired(ref=claims.ref) if status is SessionStatus.IDLE else SessionEnded(ref=claims.ref)


# --- resumption ---


class Call(RedactedRepr, msgspec.Struct, eq=False, weakref=True):
    """A request that is under way, or a stream. Kept long after it, so it holds no more than it must."""

    sessions: tuple[Claims, ...]  # that it carries, first the one that it is in: it ends with each of them
    id: bytes | None  # as JSON; None for a GET, which nothing answers
    label: str  # its method, as it may be logged
    server_id: str | None = None  # of the wrapped server's transport session that it came by
    answered: bool = False  # it was answered or cancelled: its client expects nothing more
    checks: int = 0  # how often the store had been asked about calls before this one began
    session: Session | None = None  # that it is in, while its answer may still come
    changes: tuple[Any, ...] = ()  # what the answer needs in a resumed stream, each a `Change` of `response`
    name: bytes = b""  # by which its event ids name it, once one has left

    @property
    def claims(self) -> Claims:
        """The session that it is in."""
        return self.sessions[0]

    @property
    def ended_its_session(self) -> bool:
        """True if it has ended the session that it is in, after which it goes on."""
        return self.session is not None and self.session._ended_by_own_request

    def mark_answered(self) -> None:
        """Note that the application has sent its last word: what begins from now on is no part of the request."""
        if self.session is not None:
            self.session._answered = True

    def learn_answer(self, last: bytes) -> bool:
        """Note that the last message of a stream answers it, and return True if its client expects nothing more."""
        if not self.answered and self.id is not None:
            self.answered = rewrite.is_response(last, self.id)
        return self.answered


class ResumableCalls:
    """The calls of this process whose streams can be resumed. Their state stays with the process that ran them."""

    def __init__(self, *, max_calls: int = MAX_CALLS) -> None:
        self._max_calls = max_calls
        self._by_name = WeakValueDictionary[bytes, Call]()
        self._calls: OrderedDict[Call, Session] = OrderedDict()

    def name(self, call: Call) -> bytes:
        """Return the name by which event ids lead to a call; any other process takes it for unknown."""
        if not call.name:
            call.name = token_bytes(9)
        self._by_name[call.name] = call
        return call.name

    def find(self, name: bytes) -> Call | None:
        return self._by_name.get(name)

    def keep(self, call: Call, session: Session, last: bytes) -> None:
        """Keep the session of a call for its resumed stream; it stays open unless the last message answered it."""
        self._calls[call] = session
        if call.learn_answer(last):
            session._state._close()
        if len(self._calls) > self._max_calls:
            oldest, its_session = self._calls.popitem(last=False)
            its_session._state._close()
            oldest.session, oldest.changes = None, ()
