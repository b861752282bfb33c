"""The response on its way out: what changes or observes an answer is the application's `send`.

What becomes of a body is chosen at its start: JSON is held as a whole, an event stream passes event by event, all else
passes as it comes. What changes is up to `changes`; the rest leaves as the application's own bytes. What may leave at
all is in the table of `_protocol.outgoing`, which is asked again after every await.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

import msgspec
from anyio.lowlevel import checkpoint
from starlette.types import Message as ASGIMessage
from starlette.types import Scope, Send

from .._protocol import rewrite
from .._protocol.bodies import EventBody, JSONBody
from .._protocol.headers import EVENTS, JSON, SESSION_HEADER, Header, content_type, independent_of_body
from .._protocol.outgoing import CUT, CUT_OFF, DONE, HINT, HOLD, OVER, UNSENT
from .._protocol.rewrite import Answer
from .._protocol.sse import Event, EventStream
from .._session.claims import RedactedRepr
from .context import session_header_values
from .early_end import EndableResponse
from .event_ids import EventSigner, can_sign, of_any_length, refuse_compressed, signer_for
from .observers import UNWATCHED, Watching

if TYPE_CHECKING:
    from .._session.session import Session

MAX_OBSERVED_BYTES: Final = 1 << 20  # of one message that observers read: an error has no more
_OK: Final = 200
_SERVER_ERROR: Final = 500
_log: Final = logging.getLogger("mcp_sessions")


class Change(RedactedRepr, msgspec.Struct, eq=False):
    """One thing that an answer may need."""

    defers_start: bool = False  # whether an event stream's start has to wait, since a session may be named there
    is_repeatable: ClassVar[bool] = False  # whether it needs to be done again in a resumed stream

    async def on_answer(self, answer: Answer, response: Response) -> bytes | None:
        """Return what takes the place of the success that answers the request, or None to leave it."""


class Response(EndableResponse, eq=False):
    """The response to one request, on its way from the application to the server."""

    changes: Sequence[Change] = ()  # what the answer needs, in this order
    watch: Watching = UNWATCHED  # learns how the request ended
    passes_body: bool = False  # the body leaves part by part as it came, but for its event ids
    caller_scope: Scope | None = None  # of a request outside of sessions, before the application changed it
    status: int = 0  # of its start, once the application has sent that
    body: JSONBody | EventBody | None = None  # what reads its body, chosen at the start; None if nothing does
    session_id: str | None = None  # that the headers name
    new_session: Session | None = None  # that the headers name, if it was created with the answer

    def begin(self) -> Send:
        """End it with its session from now on, and return what takes the events of the application."""
        if self.call is not None:
            self.request.runtime.streams.add(self.call, self)
        return self.send

    async def send(self, event: ASGIMessage) -> None:
        """Take one event of the application."""
        kind, state = event["type"], self.outgoing.state
        if state in CUT_OFF:  # whatever the application goes on to send
            await checkpoint()  # and it may do so in a loop that has nothing else to wait for
        elif kind == "http.response.start" and state in UNSENT:
            await self._begin(event)
        elif kind == "http.response.body" and self.status and state != DONE:
            await self._send_part(event)
        else:
            await self.pass_on(event, HINT)

    async def _begin(self, start: ASGIMessage) -> None:
        self.status = start["status"]
        if self.defers_start:  # the server's session counts, and a failed request creates none
            named = session_header_values(start)
            self.session_id = named[-1] if named else None
            if self.session_id is not None or self.status != _OK:
                for change in self.changes:
                    change.defers_start = False
        if self.watch is not UNWATCHED:
            self.watch.begin_response(self.status, session_header_values(start))
        media_type, coding = content_type(start.get("headers", ()))
        if media_type == EVENTS and coding is not None and not self.passes_body:
            self.outgoing.on(CUT)
            self.unlist()
            await refuse_compressed(self.request, self.message, self.send_out)
            return
        if media_type == EVENTS and can_sign(coding):
            self.signer: EventSigner | None = signer_for(self.request, self.caller_scope or {}, start, self.call)
            start = of_any_length(start)
        self.body = self._body_for(media_type, coding)
        if self._holds_start():
            self.outgoing.on(HOLD)
            self.held.append(start)
        else:
            await self.pass_on(start)

    def _body_for(self, media_type: bytes, coding: bytes | None) -> JSONBody | EventBody | None:
        """Return what reads the body, be it to change it or to let observers read along, or None."""
        if media_type == EVENTS and (self.watch is not UNWATCHED or not self.passes_body):
            self.is_stream: bool = not self.passes_body
            self.is_resumable: bool = self.message is None  # a client that resumes a stream has an event id
            return EventBody(EventStream(self.request.runtime.limits.event_bytes))
        if self.passes_body:
            return JSONBody(MAX_OBSERVED_BYTES) if media_type == JSON and self.watch is not UNWATCHED else None
        if media_type == JSON and coding is None:
            return JSONBody()
        if coding is not None:
            _log.error("a compressed response cannot carry its session: put compression outside MCPSessionMiddleware")
        self.passes_body = True
        return None

    async def _send_part(self, event: ASGIMessage) -> None:
        part, last = event.get("body", b""), not event.get("more_body", False)
        if last and self.call is not None:
            self.call.mark_answered()
        pieces = [] if self.body is None else self.body.feed(part, last)
        if self.passes_body:
            passed = self._passed(part, pieces, last=last)
        elif self.is_stream:
            passed = await self._changed_events(pieces, last=last)
        else:
            passed = b"" if not pieces else await self._changed_json(pieces[0].raw)
        if not (passed or last or self.passes_body):
            return
        if passed != part:
            event = {**event, "body": passed}
        if not last and self._holds_start():
            self.outgoing.on(HOLD)
            self.held.append(event)
        else:
            await self.pass_on(event)

    def _passed(self, part: bytes, pieces: Iterable[Event], *, last: bool) -> bytes:
        """Let observers read what passes, and return it with signed event ids."""
        for piece in pieces:
            if piece.data is not None:
                self.last_text = piece.data
                self._observe(piece.data)
        return part if self.signer is None else self._signed([(part, b"")], last=last)

    async def _changed_json(self, body: bytes) -> bytes:
        """Return a whole body as it leaves; the start that is held announces its length. Nothing if it is cut."""
        text = await self._change(body)
        if self.outgoing.state in CUT_OFF:
            return b""
        if text is not body:
            start, length = self.held[0], (b"content-length", b"%d" % len(text))
            self.held[0] = {**start, "headers": [*independent_of_body(start["headers"]), length]}
        return text

    async def _changed_events(self, pieces: Iterable[Event], *, last: bool) -> bytes:
        """Return events as they leave: changed, and with signed ids. Nothing if the stream is cut."""
        changed: list[tuple[bytes, bytes]] = []  # each with the last message by then
        for piece in pieces:
            raw = piece.raw
            if piece.data is not None:
                text = await self._change(piece.data)
                if self.outgoing.state in CUT_OFF:
                    return b""
                if text is not piece.data:
                    raw = piece.with_data(text)
            elif piece.oversized:
                limit = self.request.runtime.limits.event_bytes
                _log.error("forwarded an event of over %d bytes without its session (Limits.event_bytes)", limit)
            changed.append((raw, self.last_text))
        if last:
            await self._end_if_unanswered()
            if self.outgoing.state in CUT_OFF:
                return b""
        return self._signed(changed, last=last)

    def _signed(self, pieces: Iterable[tuple[bytes, bytes]], *, last: bool) -> bytes:
        """Return pieces of an event stream with signed ids; each comes with the last message by then."""
        assert self.signer is not None  # an event stream has one unless it is compressed
        signed = b"".join([self.signer.feed(raw, text) for raw, text in pieces])
        if last:
            signed += self.signer.end()
        self.is_resumable = self.is_resumable or self.signer.has_signed
        return signed

    async def _change(self, text: bytes) -> bytes:
        """Return a message as it leaves; if it is the answer, with what that needs."""
        answer = rewrite.answer(text, self.request_id)
        if self._may_be_late(is_answer=answer is not None):
            await self.end_if_refused(is_answered=answer is not None)
        for change in self.changes:
            if answer is None or self.outgoing.state in CUT_OFF:
                break
            changed = await change.on_answer(answer, self)
            if changed is not None:
                text = changed
                answer = None if change is self.changes[-1] else rewrite.answer(text, self.request_id)
        if self.outgoing.state not in CUT_OFF:  # what does not leave is not observed
            self.last_text: bytes = text
            if self.watch is not UNWATCHED:
                self._observe(text)
        return text

    def _may_be_late(self, *, is_answer: bool) -> bool:
        """Return whether the session may have ended before a message: it is late, or an error as a call ends."""
        runtime = self.request.runtime
        is_late = self.recheck_at <= runtime.clock()
        if self.is_stream:
            return is_late and is_answer
        if (is_late and self.status == _OK) or self.status >= _SERVER_ERROR:
            return True
        return self.call is not None and runtime.streams.is_being_ended(self.call)

    async def _end_if_unanswered(self) -> None:
        """End a stream that the application ends without an answer if that is because its session ends."""
        if self.call is not None and not self.call.learn_answer(self.last_text):
            await self.end_if_refused(is_answered=False)

    def _observe(self, text: bytes) -> None:
        """Let observers read a message as it leaves."""
        if len(text) <= MAX_OBSERVED_BYTES:
            self.watch.read(text)

    def _holds_start(self) -> bool:
        """Return True if the start waits: a change of JSON changes its length, and headers may name a session."""
        return not self.passes_body and (not self.is_stream or self.defers_start)

    @property
    def defers_start(self) -> bool:
        """True if the headers may still name a session."""
        for change in self.changes:  # noqa: SIM110  # a generator takes as long as the rest of the start
            if change.defers_start:
                return True
        return False

    def name(self, session_id: str) -> None:
        """Name a new session in the headers, which were not sent yet."""
        self.session_id = session_id
        self.extra_headers: tuple[Header, ...] = ((SESSION_HEADER, session_id.encode("ascii")),)


def close_session(response: Response | None, session: Session | None) -> None:
    """Close a session after its response, unless the answer can still come in a resumed stream."""
    call = None
    if response is not None:
        if response.outgoing.state not in OVER:
            response.unlist()
        call = response.call if response.is_stream else None
    if response is None or call is None:
        if session is not None:
            session._state._close()
    elif call.session is not None and response.is_resumable:
        call.changes = tuple(change for change in response.changes if change.is_repeatable)
        response.request.runtime.calls.keep(call, call.session, response.last_text)
    elif call.session is not None:
        call.session._state._close()
