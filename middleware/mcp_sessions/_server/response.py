"""The response on its way out: what changes or observes an answer is the application's `send`.

What becomes of a body is chosen at its start: JSON is buffered as a whole, an event stream passes event by event, all
else passes as it comes. What changes is up to `rewrites`; the rest leaves as the application's own bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Final

import msgspec
from anyio.lowlevel import checkpoint
from starlette.types import Message as ASGIMessage
from starlette.types import Scope

from .._errors import Refusal
from .._protocol import rewrite
from .._protocol.headers import EVENTS, JSON, SESSION_HEADER, Header, content_type, independent_of_body
from .._protocol.sse import EventStream
from .._session.claims import RedactedRepr
from .context import session_header_values
from .early_end import EndableResponse
from .event_ids import EventSigner, can_sign, of_any_length, refuse_compressed, signer_for

if TYPE_CHECKING:
    from .._session.session import Session
    from ..telemetry._outcome import RequestTelemetry
    from .resumption import StreamRequest

MAX_OBSERVED_BYTES: Final = 1 << 20  # of one message that telemetry reads: an error has no more
_OK: Final = 200
_SERVER_ERROR: Final = 500
_log: Final = logging.getLogger("mcp_sessions")


class Rewrite(RedactedRepr, msgspec.Struct, eq=False):
    """One thing that a response may need."""

    defers_start: bool = False  # whether an event stream's start has to wait, since a session may be named there
    is_repeatable: ClassVar[bool] = False  # whether it needs to be done again in a resumed stream

    async def on_text(self, text: bytes, response: Response) -> bytes | None:
        """Return what takes the place of a JSON-RPC message of the response, or None to leave it."""


class Response(EndableResponse, eq=False):
    """The response to one request, on its way from the application to the server."""

    rewrites: Sequence[Rewrite] = ()  # what the answer needs, in this order
    observer: RequestTelemetry | None = None  # learns how the request ended
    passes_body: bool = False  # the body leaves part by part as it came, but for its event ids
    caller_scope: Scope | None = None  # of a request outside of sessions, before the application changed it
    signs_ids: bool = True  # False if what is sent here was signed before
    body: JSONBody | EventBody | OpaqueBody | None = None  # chosen at the start
    extra_headers: tuple[Header, ...] = ()  # what names a new session
    session_id: str | None = None  # that the headers name
    new_session: Session | None = None  # that the headers name, if it was created with the answer

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
            await self.pass_on(event)

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
            self.unlist()
            await refuse_compressed(self.ctx, self.message, self.send_out)
            return
        if media_type == EVENTS and self.signs_ids and can_sign(coding):
            signer = signer_for(self.ctx, self.caller_scope or {}, start, self.request)
        self.body = self._body_for(media_type, coding, signer)
        if isinstance(self.body, EventBody):
            await self.body.begin(start)
        elif isinstance(self.body, JSONBody):
            self.pending.append(start)  # a change of the body changes its length
        else:
            await self.pass_on(start if signer is None else of_any_length(start))

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
            return EventBody(self, EventStream(max_bytes), signer, is_resumable=is_resumed)
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
        self.last_text = text
        if self.observer is not None and len(text) <= MAX_OBSERVED_BYTES:
            self.observer.read(text)

    @property
    def has_left(self) -> bool:
        """Whether a part of it was sent."""
        return self.body is not None and not self.pending

    def last_part(self, refusal: Refusal) -> bytes:
        """Return the event that tells why a stream ends; another body only breaks off."""
        body = self.body
        last = self.refusal_body(refusal) if isinstance(body, EventBody) else b""
        if not (last and isinstance(body, EventBody)):
            return b""
        # By its id a client that resumes the stream learns on any worker that there is no more of it.
        own_id = b"id: %b\n" % (body.signer.sign(b"") or b"") if body.is_resumable else b""
        # The blank line ends an event that was too large to buffer and is half sent; elsewhere it means nothing.
        return b"\n\n%bdata: %b\n\n" % (own_id, last)

    async def release(self) -> None:
        """Send what is pending, with the headers that name a new session."""
        pending = [*self.pending]
        self.pending.clear()
        if self.extra_headers and pending[0]["type"] == "http.response.start":
            pending[0] = {**pending[0], "headers": [*pending[0]["headers"], *self.extra_headers]}
        await self.pass_on(*pending)


def close_session(response: Response | None, session: Session | None) -> None:
    """Close a session after its response, unless the answer can still come in a resumed stream."""
    body = None
    if response is not None:
        response.unlist()
        body, response.body = response.body, None  # which refers to the response
    if isinstance(body, EventBody) and response is not None and response.request is not None:
        body.close(response.request)
    elif session is not None:
        session._state._close()


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
        await self.response.pass_on(event if self.signer is None else self.signer.signed(event))

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
            await response.pass_on(event)
            return
        self.pieces.append(event.get("body", b""))
        if event.get("more_body", False):
            return
        text, start = b"".join(self.pieces), response.pending[0]
        await self._check(text, start["status"])
        changed = None if response.terminated else await response.rewrite(text)
        if response.terminated:  # it was refused meanwhile
            return
        response.pending.clear()
        headers = start["headers"]
        if changed is not None:
            text, headers = changed, [*independent_of_body(headers), (b"content-length", b"%d" % len(changed))]
        response.observe(text)
        await response.pass_on({**start, "headers": [*headers, *response.extra_headers]}, {**event, "body": text})

    async def _check(self, text: bytes, status: int) -> None:
        """End it early if its session has ended: it comes late, or is an error while the session is being ended."""
        response = self.response
        is_late = status == _OK and response.status_is_stale()
        if is_late or status >= _SERVER_ERROR or response.is_being_ended:
            await response.end_if_refused(is_answered=response.is_answer(text))


class EventBody(RedactedRepr, msgspec.Struct, eq=False):
    """An event stream, which passes event by event, with signed ids, and ends with its session."""

    response: Response
    events: EventStream
    signer: EventSigner
    is_resumable: bool = False  # its client has an event id

    async def begin(self, start: ASGIMessage) -> None:
        response = self.response
        response.pending.append({**start, "headers": independent_of_body(start["headers"])})
        if not response.defers_start:
            await response.release()

    async def send(self, event: ASGIMessage) -> None:
        body, more, response = event.get("body", b""), event.get("more_body", False), self.response
        request, pieces = response.request, list[tuple[bytes, bytes]]()  # each with the last message by then
        for piece in self.events.feed(body):
            if piece.oversized:
                _log.error(
                    "forwarded an event of over %d bytes without its session (Limits.event_bytes)",
                    response.ctx.runtime.limits.event_bytes,
                )
            changed = None if piece.data is None else await self._rewrite(piece.data)
            pieces.append((piece.raw if changed is None else piece.with_data(changed), response.last_text))
        if not (more or response.terminated or request is None or request.is_answered_by(response.last_text)):
            await response.end_if_refused(is_answered=False)
        if response.terminated:  # it ended, or was refused, while a rewrite waited for the store
            return
        signer = self.signer
        passed = b"".join([signer.feed(raw, text) for raw, text in pieces])
        if not more:
            passed += signer.feed(self.events.end(), response.last_text) + signer.end()
        self.is_resumable = self.is_resumable or signer.has_signed
        if passed or not more:
            response.pending.append(event if passed == body else {**event, "body": passed})
            if not (more and response.defers_start):
                await response.release()

    async def _rewrite(self, text: bytes) -> bytes | None:
        response = self.response
        if response.status_is_stale() and response.is_answer(text):
            await response.end_if_refused(is_answered=True)
        if response.terminated:  # what does not leave is neither changed nor observed
            return None
        changed = await response.rewrite(text)
        response.observe(text if changed is None else changed)
        return changed

    def close(self, request: StreamRequest) -> None:
        """Close a session with its stream; the state stays open where a client that can resume it waits for it."""
        if request.session is not None and self.is_resumable:
            request.rewrites = tuple(change for change in self.response.rewrites if change.is_repeatable)
            self.response.ctx.runtime.calls.keep(request, request.session, self.response.last_text)
        elif request.session is not None:
            request.session._state._close()
