"""The response on its way out: what changes or observes an answer is the application's `send`.

What becomes of a body is chosen at its start: JSON is buffered as a whole, an event stream passes event by event, all
else passes as it comes. What changes is up to `rewrites`; the rest leaves as the application's own bytes. A late answer
asks the store again; `resumption.Streams` polls it, and calls `EventBody.terminate` where a session has ended.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, ClassVar, Final

import anyio
import msgspec
from anyio.lowlevel import checkpoint
from starlette.types import Message as ASGIMessage
from starlette.types import Scope, Send

from .._errors import Refusal, SessionEnded, StoreUnavailable
from .._protocol import rewrite
from .._protocol.headers import EVENTS, JSON, SESSION_HEADER, Header, content_type, independent_of_body
from .._protocol.sse import EventStream
from .._session.claims import RedactedRepr
from ..stores._base import LIVE
from .context import RequestContext, session_header_values
from .event_ids import EventSigner, can_sign, of_any_length, refuse_compressed, signer_for
from .resumption import StreamRequest

if TYPE_CHECKING:
    from .._protocol.jsonrpc import Message
    from ..telemetry._outcome import RequestTelemetry
    from .active import ActiveSession

MAX_OBSERVED_BYTES: Final = 1 << 20  # of one message that telemetry reads: an error has no more
_OK: Final = 200
_LAST_EVENT_TIMEOUT: Final = 0.5  # seconds, for the last event of a stream whose session has ended
_log: Final = logging.getLogger("mcp_sessions")


class Rewrite(RedactedRepr, msgspec.Struct, eq=False):
    """One thing that a response may need."""

    defers_start: bool = False  # whether an event stream's start has to wait, since a session may be named there
    is_repeatable: ClassVar[bool] = False  # whether it needs to be done again in a resumed stream

    async def on_text(self, text: bytes, response: Response) -> bytes | None:
        """Return what takes the place of a JSON-RPC message of the response, or None to leave it."""


class Response(RedactedRepr, msgspec.Struct, eq=False):
    """The response to one request, on its way from the application to the server."""

    ctx: RequestContext
    send_out: Send
    request_id: bytes = b""  # as JSON text; empty where nothing answers it
    rewrites: Sequence[Rewrite] = ()  # what the answer needs, in this order
    observer: RequestTelemetry | None = None  # learns how the request ended
    message: Message | None = None  # the request; None for a stream, resumed or of a GET
    request: StreamRequest | None = None  # what its stream and a resumed one need; None outside of a session
    fail_open: bool = False  # whether it goes on where the store does not say whether the session has ended
    recheck_at: float = inf  # when the session may have ended since the store was asked, Unix seconds
    passes_body: bool = False  # the body leaves part by part as it came, but for its event ids
    caller_scope: Scope = {}  # of a request outside of sessions, before the application changed it
    signs_ids: bool = True  # False if what is sent here was signed before
    body: JSONBody | EventBody | OpaqueBody | None = None  # chosen at the start
    pending: list[ASGIMessage] = []  # the start, and what follows it, until they are sent; each struct gets its own
    extra_headers: tuple[Header, ...] = ()  # what names a new session
    session_id: str | None = None  # that the headers name
    terminated: bool = False  # it was ended before its time

    async def send(self, event: ASGIMessage) -> None:
        """Take one event of the application."""
        if self.terminated:  # whatever the application goes on to send
            await checkpoint()  # and it may do so in a loop that has nothing else to wait for
        elif event["type"] == "http.response.start":
            await self._begin(event)
        elif event["type"] == "http.response.body" and self.body is not None:
            if self.request is not None and not event.get("more_body", False):
                self.request.mark_answered()
            await self.body.send(event)
        else:
            await self.send_out(event)

    async def _begin(self, start: ASGIMessage) -> None:
        if self.defers_start:  # ours is not named if the server names its own, or if the request fails
            named = session_header_values(start)
            self.session_id = named[-1] if named else None
            if self.session_id is not None or start["status"] != _OK:
                for change in self.rewrites:
                    change.defers_start = False
        if self.observer is not None:
            self.observer.begin_response(start["status"], session_header_values(start))
        media_type, coding = content_type(start.get("headers", ()))
        signer = None
        if media_type == EVENTS and coding is not None and not self.passes_body:
            self.terminated = True
            await refuse_compressed(self.ctx, self.message, self.send_out)
            return
        if media_type == EVENTS and self.signs_ids and can_sign(coding):
            signer = signer_for(self.ctx, self.caller_scope, start, self.request)
        self.body = self._body_for(media_type, coding, signer)
        if isinstance(self.body, EventBody):
            await self.body.begin(start)
        elif isinstance(self.body, JSONBody):
            self.pending.append(start)  # a change of the body changes its length
        else:
            await self.send_out(start if signer is None else of_any_length(start))

    def _body_for(
        self, media_type: bytes, coding: bytes | None, signer: EventSigner | None
    ) -> JSONBody | EventBody | OpaqueBody:
        max_bytes = self.ctx.runtime.limits.event_bytes
        if self.passes_body:
            self.observer = self.observer if media_type in {JSON, EVENTS} else None
            observes_events = media_type == EVENTS and self.observer is not None
            return OpaqueBody(self, EventStream(max_bytes) if observes_events else None, signer)
        if signer is not None:
            is_resumed = self.message is None  # so its client has an event id
            return EventBody(self, EventStream(max_bytes), signer, self.request, is_resumable=is_resumed)
        if coding is not None:
            _log.error("a compressed response cannot carry its session: put compression outside MCPSessionMiddleware")
        elif media_type == JSON:
            return JSONBody(self)
        self.observer = None
        return OpaqueBody(self)

    @property
    def defers_start(self) -> bool:
        """Whether the start waits, since a session may still be named there."""
        return any(change.defers_start for change in self.rewrites)

    def is_answer(self, text: bytes) -> bool:
        """Whether a message is the success that answers the request."""
        return rewrite.is_answer(text, self.request_id)

    def name(self, session_id: str) -> None:
        """Name a new session in the headers, which were not sent yet."""
        self.session_id = session_id
        self.extra_headers = ((SESSION_HEADER, session_id.encode("ascii")),)

    async def rewrite(self, text: bytes) -> bytes | None:
        """Return what takes the place of a JSON-RPC message, or None where it stays."""
        changed = None
        for change in self.rewrites:
            replaced = await change.on_text(text if changed is None else changed, self)
            changed = changed if replaced is None else replaced
            if self.terminated:  # it has ended, or was refused
                break
        return changed

    def observe(self, text: bytes) -> None:
        """Let telemetry read a message as it leaves."""
        if self.observer is not None and len(text) <= MAX_OBSERVED_BYTES:
            self.observer.read(text)

    @property
    def has_left(self) -> bool:
        """Whether a part of it was sent."""
        return self.body is not None and not self.pending

    async def release(self) -> None:
        """Send what is pending, with the headers that name a new session."""
        pending, self.pending = self.pending, []
        for event in pending:
            if event["type"] == "http.response.start" and self.extra_headers:
                event["headers"] = [*event["headers"], *self.extra_headers]
            await self.send_out(event)

    async def late_refusal(self) -> Refusal | None:
        """Return why the answer must not leave: its session has ended since the store was asked, or may have."""
        if self.request is None or self.request.ended_its_session:
            return None
        claims = self.request.claims
        try:
            (status,) = await self.ctx.runtime.store.statuses([claims])
        except StoreUnavailable as error:
            return None if self.fail_open else error
        return None if status is LIVE else SessionEnded(ref=claims.ref)

    def refusal_body(self, refusal: Refusal) -> bytes:
        """Record a refusal, and return the error that takes the place of the answer, if one is expected."""
        if self.message is not None:
            return self.ctx.refusal_body(self.message, refusal)
        if self.request is None or self.request.id is None:
            return b""
        self.ctx.record_refused(refusal, self.request.label)
        return rewrite.error(self.request.id, refusal.code, refusal.client_message)

    def status_is_stale(self) -> bool:
        """Whether the session may have ended since the store was asked."""
        return self.recheck_at <= self.ctx.runtime.clock()


def close_session(response: Response | None, session: ActiveSession | None) -> None:
    """Close a session after its response, unless the answer can still come in a resumed stream."""
    body = None
    if response is not None:
        body, response.body = response.body, None  # which refers to the response
    if isinstance(body, EventBody) and body.request is not None:
        body.close(body.request)
    elif session is not None:
        session.close()


class OpaqueBody(RedactedRepr, msgspec.Struct, eq=False):
    """A body that passes part by part, with signed event ids; telemetry reads along where it is JSON or events."""

    response: Response
    events: EventStream | None = None  # for telemetry
    signer: EventSigner | None = None  # of an event stream
    pieces: list[bytes] = []  # each struct gets its own
    size: int = 0

    async def send(self, event: ASGIMessage) -> None:
        if self.response.observer is not None:
            self._observe(event.get("body", b""), event.get("more_body", False))
        await self.response.send_out(event if self.signer is None else self.signer.signed(event))

    def _observe(self, part: bytes, more: bool) -> None:
        """Let telemetry read an event when it is complete, and JSON with the last part."""
        if self.events is not None:
            for piece in self.events.feed(part):
                if piece.data is not None:
                    self.response.observe(piece.data)
            return
        self.pieces.append(part)
        self.size += len(part)
        if self.size > MAX_OBSERVED_BYTES:
            self.response.observer = None
            self.pieces.clear()
        elif not more:
            self.response.observe(b"".join(self.pieces))


class JSONBody(RedactedRepr, msgspec.Struct, eq=False):
    """A JSON answer, buffered as a whole with its start."""

    response: Response
    pieces: list[bytes] = []  # each struct gets its own

    async def send(self, event: ASGIMessage) -> None:
        response = self.response
        if not response.pending:  # it has left already
            await response.send_out(event)
            return
        self.pieces.append(event.get("body", b""))
        if event.get("more_body", False):
            return
        text, start = b"".join(self.pieces), response.pending[0]
        is_stale = response.status_is_stale() and start["status"] == _OK
        refusal = await response.late_refusal() if is_stale else None
        changed = await response.rewrite(text) if refusal is None else response.refusal_body(refusal)
        if response.terminated:  # it was refused meanwhile
            return
        headers = response.pending.pop()["headers"]
        if changed is not None:
            text, headers = changed, [*independent_of_body(headers), (b"content-length", b"%d" % len(changed))]
        response.observe(text)
        await response.send_out({**start, "headers": [*headers, *response.extra_headers]})
        await response.send_out({**event, "body": text})


class EventBody(RedactedRepr, msgspec.Struct, eq=False):
    """An event stream, which passes event by event, with signed ids, and ends with its session."""

    response: Response
    events: EventStream
    signer: EventSigner
    request: StreamRequest | None  # that it answers, where that is in a session
    is_sending: bool = False  # events are on their way just now
    is_resumable: bool = False  # its client has an event id
    refusal: Refusal | None = None  # why it was ended, where its session has not simply ended
    last_text: bytes = b""  # of its events, as it left

    async def begin(self, start: ASGIMessage) -> None:
        response = self.response
        response.pending.append({**start, "headers": independent_of_body(start["headers"])})
        if not response.defers_start:
            await response.release()
        if self.request is not None:
            response.ctx.runtime.streams.add(self.request, self.terminate)
            if response.status_is_stale():
                await self._terminate_if_refused()

    async def send(self, event: ASGIMessage) -> None:
        body, more, response = event.get("body", b""), event.get("more_body", False), self.response
        runtime, pieces = response.ctx.runtime, list[tuple[bytes, bytes]]()  # each with the last message by then
        for piece in self.events.feed(body):
            if piece.oversized:
                _log.error(
                    "forwarded an event of over %d bytes without its session (Limits.event_bytes)",
                    runtime.limits.event_bytes,
                )
            changed = None if piece.data is None else await self._rewrite(piece.data)
            pieces.append((piece.raw if changed is None else piece.with_data(changed), self.last_text))
        if response.terminated:  # it ended, or was refused, while a rewrite waited for the store
            return
        signer = self.signer
        passed = b"".join([signer.feed(raw, text) for raw, text in pieces])
        if not more:
            passed += signer.feed(self.events.end(), self.last_text) + signer.end()
        self.is_resumable = self.is_resumable or signer.has_signed
        if passed or not more:
            await self._pass(event if passed == body else {**event, "body": passed}, more)

    async def _rewrite(self, text: bytes) -> bytes | None:
        response = self.response
        if response.ctx.runtime.streams.store_unavailable and response.is_answer(text):
            await self._terminate_if_refused()
        if response.terminated:  # what does not leave is neither changed nor observed
            return None
        changed = await response.rewrite(text)
        self.last_text = text if changed is None else changed
        response.observe(self.last_text)
        return changed

    async def _pass(self, event: ASGIMessage, more: bool) -> None:
        """Send a part of the stream, or let it wait with the start."""
        response = self.response
        response.pending.append(event)
        if more and response.defers_start:
            return
        self.is_sending = True
        try:
            await response.release()
        finally:
            self.is_sending = False
        if not more:
            self._unlist()
        elif response.terminated:
            await self._send_last()  # it was terminated while something was sent

    async def terminate(self, refusal: Refusal | None = None) -> None:
        """End the stream: its session has ended, or it is refused otherwise. What is being sent goes out before."""
        self.response.terminated, self.refusal = True, refusal
        if not self.is_sending:
            await self._send_last()

    def close(self, request: StreamRequest) -> None:
        """Close a session with its stream; the state stays open where a client that can resume it waits for it."""
        self._unlist()
        if request.session is not None and self.is_resumable:
            request.rewrites = tuple(change for change in self.response.rewrites if change.is_repeatable)
            self.response.ctx.runtime.calls.keep(request, request.session, self.last_text)
        elif request.session is not None:
            request.session.close()

    def _unlist(self) -> None:
        """No longer end this stream with its session."""
        if self.request is not None:
            self.response.ctx.runtime.streams.remove(self.request, self.terminate)

    async def _terminate_if_refused(self) -> None:
        refusal = await self.response.late_refusal()
        if refusal is not None and not self.response.terminated:
            self._unlist()
            await self.terminate(refusal)

    async def _send_last(self) -> None:
        request = self.request
        assert request is not None
        request.mark_answered()
        is_answered, request.answered = request.is_answered_by(self.last_text), True
        last = b"" if is_answered else self.response.refusal_body(self.refusal or SessionEnded(ref=request.claims.ref))
        # By its id a client that resumes the stream learns on any worker that there is no more of it.
        own_id = b"id: %b\n" % (self.signer.sign(b"") or b"") if last and self.is_resumable else b""
        # The blank line ends an event that was too large to buffer and is half sent; elsewhere it means nothing.
        body = b"\n\n%bdata: %b\n\n" % (own_id, last) if last else b""
        self.response.pending.append({"type": "http.response.body", "body": body, "more_body": False})
        # Ending a session does not wait for a client that does not read, nor fail for one that has gone.
        with anyio.move_on_after(_LAST_EVENT_TIMEOUT), suppress(Exception):
            await self.response.release()
