"""A response that may end early: its session ends while the call is under way, or the answer is refused.

`resumption.Streams` ends it when its session ends here, or when the store says so. An answer that comes late asks the
store itself. Nothing more of the application leaves then.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Final

import anyio
import msgspec
from starlette.types import Message as ASGIMessage
from starlette.types import Send

from .._errors import Refusal, SessionExpired, SessionNotFound, StoreUnavailable
from .._protocol import rewrite
from .._session.claims import RedactedRepr
from ..stores._base import LIVE
from .answers import send_refusal, send_refusal_without_id, send_status
from .background import start
from .context import Request, error_data
from .logs import log_extra
from .resumption import StreamRequest, refusal_for_status

if TYPE_CHECKING:
    from .._protocol.jsonrpc import Message

_ACCEPTED: Final = 202  # what a client that has cancelled a call expects, as for a notification
_GONE: Final = 404  # what a server answers for a stream that it does not have
_LAST_EVENT_TIMEOUT: Final = 60.0  # seconds, for the end of a response whose client does not read; nobody waits for it
_log: Final = logging.getLogger("mcp_sessions")


class EndableResponse(RedactedRepr, msgspec.Struct, eq=False):
    """The response to one request, as far as it can be ended."""

    ctx: Request
    send_out: Send
    request_id: bytes = b""  # as JSON text; empty where nothing answers it
    message: Message | None = None  # the request; None for a stream, resumed or of a GET
    request: StreamRequest | None = None  # what its stream and a resumed one need; None outside of a session
    recheck_at: float = inf  # when the session may have ended since the store was asked, Unix seconds
    pending: list[ASGIMessage] = []  # the start, and what follows it, until they are sent; each struct gets its own
    last_text: bytes = b""  # of its messages, as it left
    is_sending: bool = False  # something is on its way just now
    is_complete: bool = False  # the application's own end has left
    terminated: bool = False  # it was ended before its time
    refusal: Refusal | None = None  # why
    is_settled: bool = False  # its client expects nothing more by then
    closing: anyio.Event | None = None  # set when its early end has left, where another task sends that

    @property
    @abstractmethod
    def has_left(self) -> bool:
        """Whether a part of it was sent."""

    @abstractmethod
    def last_part(self, refusal: Refusal) -> bytes:
        """Return what tells within its body why it ends."""

    async def pass_on(self, *events: ASGIMessage) -> None:
        """Send events of the application; an early end waits for them, and then follows."""
        self.is_sending = True
        try:
            for event in events:
                await self.send_out(event)
        finally:
            self.is_sending = False
        if events[-1]["type"] == "http.response.body" and not events[-1].get("more_body", False):
            self.is_complete = True
            self.unlist()
        elif self.terminated:
            await self._send_end()

    def enlist(self) -> None:
        """End it with its session from now on."""
        if self.request is not None:
            self.ctx.runtime.streams.add(self.request, self)

    def unlist(self) -> None:
        """No longer end it with its session."""
        if self.request is not None:
            self.ctx.runtime.streams.remove(self.request, self)

    def terminate(self, refusal: Refusal) -> None:
        """End it early, without waiting for its client. What is being sent goes out before."""
        if not (self.terminated or self.is_complete):
            self._set_refusal(refusal)
            if not self.is_sending:
                self.closing = anyio.Event()
                start(self._send_end)

    async def refuse(self, refusal: Refusal) -> None:
        """End it early from within the application's `send`."""
        if not self.terminated:
            self.unlist()
            self._set_refusal(refusal)
            await self._send_end()

    def _set_refusal(self, refusal: Refusal) -> None:
        self.terminated, self.refusal = True, refusal
        # Before any stream of the request has ended: each of two says so, since one may have lost its client.
        self.is_settled = self.request is not None and self.request.is_answered_by(self.last_text)

    async def finish(self) -> None:
        """Wait for an early end that another task sends; called when the application has returned or failed.

        If it has left the request unanswered, that may be since its session ends just now.
        """
        if not (self.is_complete or self.terminated):
            await self.end_if_refused(is_answered=False)
        if self.closing is not None:
            await self.closing.wait()

    async def end_if_refused(self, *, is_answered: bool) -> None:
        """Refuse the response if its session has ended, which the server may have done itself just before."""
        request = self.request
        if request is None or request.id is None or request.ended_its_session:
            return
        if not is_answered:
            await self.ctx.runtime.streams.decided(request)
        if not self.terminated and (refusal := await self._late_refusal(request, is_answered)) is not None:
            await self.refuse(refusal)

    async def _late_refusal(self, request: StreamRequest, is_answered: bool) -> Refusal | None:
        """Return why the answer must not leave: its session has ended since the store was asked."""
        claims, runtime = request.claims, self.ctx.runtime
        if not runtime.clock() < claims.expires_at:
            return SessionExpired(ref=claims.ref)
        try:
            statuses = await runtime.store.statuses(request.all_claims)
        except Exception as error:  # noqa: BLE001  # a store of the application's may raise anything
            if is_answered:
                text = "answer of %s in session %s delivered, though the session may have ended during the call: store "
                text += "unavailable (%s); requests in sessions are refused until it answers"
                reason = error.reason if isinstance(error, StoreUnavailable) else type(error).__name__
                _log.warning(text, ascii(request.label), claims.ref, reason, extra=log_extra(claims.ref))
            return None
        ended = (pair for pair in zip(statuses, request.all_claims, strict=True) if pair[0] is not LIVE)
        return next((refusal_for_status(status, one) for status, one in ended), None)

    async def _send_end(self) -> None:
        """Send the error for which it ends, or only the end if its client expects nothing more."""
        # Nobody waits for a client that does not read, and one that has gone is no error.
        try:
            with anyio.move_on_after(_LAST_EVENT_TIMEOUT), suppress(Exception):
                await self._refuse_out()
        finally:
            if self.closing is not None:
                self.closing.set()

    async def _refuse_out(self) -> None:
        request, refusal = self.request, self.refusal
        assert refusal is not None
        refusal.executed = request is not None and request.id is not None
        if request is not None:
            request.answered = True
            request.mark_answered()
        if self.has_left:
            body = b"" if self.is_settled else self.last_part(refusal)
            await self.send_out({"type": "http.response.body", "body": body, "more_body": False})
        elif self.is_settled:
            await send_status(self.send_out, _ACCEPTED)
        elif self.message is not None:
            await send_refusal(self.ctx, refusal)
        else:
            refusal.http_status = _GONE if isinstance(refusal, SessionNotFound) else refusal.http_status
            await send_refusal_without_id(self.ctx, refusal)

    def refusal_body(self, refusal: Refusal) -> bytes:
        """Record a refusal, and return the error that takes the place of the answer, if one is expected."""
        if self.message is not None:
            return self.ctx.refusal_body(refusal)
        if self.request is None or self.request.id is None:
            return b""
        self.ctx.record_refused(refusal, self.request.label)
        return rewrite.error(self.request.id, refusal.code, refusal.client_message, error_data(refusal))

    @property
    def is_being_ended(self) -> bool:
        """Whether its session may be about to end."""
        return self.request is not None and self.ctx.runtime.streams.is_being_ended(self.request)

    def status_is_stale(self) -> bool:
        """Whether the session may have ended since the store was asked."""
        return self.recheck_at <= self.ctx.runtime.clock()
