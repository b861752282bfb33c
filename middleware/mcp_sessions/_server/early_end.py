"""A response that may end early: its session ends while the call is under way, or the answer is refused.

`resumption.Streams` ends it when its session ends here, or when the store says so. An answer that comes late asks the
store itself. Nothing more of the application leaves then: `_protocol.outgoing` has the states and what follows on what.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Final

import anyio
import msgspec
from starlette.types import Message as ASGIMessage
from starlette.types import Send

from .._errors import Refusal, SessionExpired, SessionNotFound, StoreUnavailable
from .._protocol import rewrite
from .._protocol.headers import Header
from .._protocol.outgoing import (
    CUT,
    CUT_OFF,
    END,
    FAILED,
    FORWARD,
    NOTHING,
    OVER,
    REFUSE,
    SEND,
    SENT,
    SENT_LAST,
    UNSENT,
    Event,
    Outgoing,
)
from .._session.claims import RedactedRepr
from ..stores._base import LIVE
from .answers import send_refusal, send_refusal_without_id, send_status
from .background import start
from .context import Request, error_data
from .event_ids import EventSigner
from .logs import log_extra
from .resumption import Call, refusal_for_status

if TYPE_CHECKING:
    from .._protocol.jsonrpc import Message

_ACCEPTED: Final = 202  # what a client that has cancelled a call expects, as for a notification
_GONE: Final = 404  # what a server answers for a stream that it does not have
_LAST_EVENT_TIMEOUT: Final = 60.0  # seconds in which a client has to read the end of its response; no task waits for it
_log: Final = logging.getLogger("mcp_sessions")


class EndableResponse(RedactedRepr, msgspec.Struct, eq=False):
    """The response to one request, as far as it can be ended."""

    request: Request
    send_out: Send
    request_id: bytes = b""  # as JSON text; empty if nothing answers it
    message: Message | None = None  # None for a stream, resumed or of a GET
    call: Call | None = None  # what its stream and a resumed one need; None outside of a session
    recheck_at: float = inf  # when the session may have ended since the store was asked, Unix seconds
    outgoing: Outgoing = msgspec.field(default_factory=Outgoing)
    held: list[ASGIMessage] = []  # the start, and what follows it, until they may leave; each struct has another list
    extra_headers: tuple[Header, ...] = ()  # what names a new session
    last_text: bytes = b""  # of its messages, as it left
    signer: EventSigner | None = None  # of its event ids, if it is an event stream
    is_stream: bool = False  # an event stream that is changed, so it can end with an event
    is_resumable: bool = False  # its client has an event id
    refusal: Refusal | None = None  # why it ends early
    is_settled: bool = False  # its client expects nothing more by then
    end_sent: anyio.Event | None = None  # set once its early end has left, if another task sends that

    async def pass_on(self, event: ASGIMessage, step: Event = SEND) -> None:
        """Send an event of the application, and before a part those that were held; if it is cut, its end follows."""
        if self.outgoing.on(step) != FORWARD:
            return
        outcome: Event = FAILED
        try:
            if self.held and step == SEND:
                await self._send_held()
            await self.send_out(event)
            is_last = event["type"] == "http.response.body" and not event.get("more_body", False)
            outcome = SENT_LAST if is_last else SENT
        finally:
            action = self.outgoing.on(outcome)
        if action != NOTHING:
            await self._send_end()
        elif outcome == SENT_LAST:
            self.unlist()

    async def _send_held(self) -> None:
        """Send the start that was held, with the headers that name a new session, and what came after it."""
        (start, *others), self.held = self.held, []
        await self.send_out({**start, "headers": [*start["headers"], *self.extra_headers]})
        for event in others:
            await self.send_out(event)

    def unlist(self) -> None:
        """No longer end it with its session."""
        if self.call is not None:
            self.request.runtime.streams.remove(self.call, self)

    def terminate(self, refusal: Refusal) -> None:
        """End it early, without waiting for its client. What is being sent goes out before."""
        if self._cut(refusal):
            self.end_sent = anyio.Event()
            start(self._send_end)

    async def refuse(self, refusal: Refusal) -> None:
        """End it early from within the application's `send`."""
        self.unlist()
        if self._cut(refusal):
            await self._send_end()

    def _cut(self, refusal: Refusal) -> bool:
        """Let nothing more of the application leave, and return whether the end has to be sent now."""
        if self.outgoing.state in OVER:
            return False
        self.refusal = refusal
        # Before any stream of the request has ended: each of two says so, since one may have lost its client.
        self.is_settled = self.call is not None and self.call.learn_answer(self.last_text)
        return self.outgoing.on(CUT) in {REFUSE, END}

    async def finish(self) -> None:
        """Wait for an early end that another task sends; called when the application has returned or failed.

        If it has left the request unanswered, that may be since its session ends just now.
        """
        if self.outgoing.state not in OVER:
            await self.end_if_refused(is_answered=False)
        if self.end_sent is not None:
            await self.end_sent.wait()

    async def fail(self, error: Exception) -> bool:
        """End it after an error of the application, and return True if a refusal has answered the request."""
        await self.finish()
        if self.message is None or self.outgoing.state not in UNSENT or not isinstance(error, StoreUnavailable):
            return False
        error.ref = error.ref or (None if self.call is None else self.call.claims.ref)
        await self.refuse(error)
        return True

    async def end_if_refused(self, *, is_answered: bool) -> None:
        """Refuse the response if its session has ended, which the server may have done itself just before."""
        call = self.call
        if call is None or call.id is None or call.ended_its_session:
            return
        if not is_answered:
            await self.request.runtime.streams.decided(call)
        if self.outgoing.state not in CUT_OFF and (refusal := await self._late_refusal(call, is_answered)) is not None:
            await self.refuse(refusal)

    async def _late_refusal(self, call: Call, is_answered: bool) -> Refusal | None:
        """Return why the answer must not leave: its session has ended since the store was asked."""
        claims, runtime = call.claims, self.request.runtime
        if not runtime.clock() < claims.expires_at:
            return SessionExpired(ref=claims.ref)
        try:
            answers = await runtime.rechecks.ask(*call.sessions)
        except Exception as error:  # noqa: BLE001  # a store of the application's may raise anything
            if is_answered:
                text = "answer of %s in session %s delivered, though the session may have ended during the call: store "
                text += "unavailable (%s); requests in sessions are refused until it answers"
                reason = error.reason if isinstance(error, StoreUnavailable) else type(error).__name__
                _log.warning(text, ascii(call.label), claims.ref, reason, extra=log_extra(claims.ref))
            return None
        pairs = zip(answers, call.sessions, strict=True)
        return next((refusal_for_status(found.status, one) for found, one in pairs if found.status is not LIVE), None)

    async def _send_end(self) -> None:
        """Send the error for which it ends, or only the end if its client expects nothing more."""
        # Nobody waits for a client that does not read, and one that has gone is no error.
        try:
            with anyio.move_on_after(_LAST_EVENT_TIMEOUT), suppress(Exception):
                await self._refuse_out()
        finally:
            if self.end_sent is not None:
                self.end_sent.set()

    async def _refuse_out(self) -> None:
        call, refusal = self.call, self.refusal
        assert refusal is not None
        refusal.executed = call is not None and call.id is not None
        if call is not None:
            call.answered = True
            call.mark_answered()
        if self.outgoing.state not in UNSENT:
            body = b"" if self.is_settled else self._last_part(refusal)
            await self.send_out({"type": "http.response.body", "body": body, "more_body": False})
        elif self.is_settled:
            await send_status(self.send_out, _ACCEPTED)
        elif self.message is not None:
            await send_refusal(self.request, refusal)
        else:
            refusal.http_status = _GONE if isinstance(refusal, SessionNotFound) else refusal.http_status
            await send_refusal_without_id(self.request, refusal)

    def _last_part(self, refusal: Refusal) -> bytes:
        """Return the event that tells why a stream ends; another body only breaks off."""
        last = self.refusal_body(refusal) if self.is_stream else b""
        if not last or self.signer is None:
            return b""
        # By its id a client that resumes the stream learns on any worker that there is no more of it.
        own_id = b"id: %b\n" % (self.signer.sign(b"") or b"") if self.is_resumable else b""
        # The blank line ends an event that was too large to buffer and is half sent; between events it means nothing.
        return b"\n\n%bdata: %b\n\n" % (own_id, last)

    def refusal_body(self, refusal: Refusal) -> bytes:
        """Record a refusal, and return the error that takes the place of the answer, if one is expected."""
        if self.message is not None:
            return self.request.refusal_body(refusal)
        if self.call is None or self.call.id is None:
            return b""
        self.request.record_refused(refusal, self.call.label)
        return rewrite.error(self.call.id, refusal.code, refusal.client_message, error_data(refusal))
