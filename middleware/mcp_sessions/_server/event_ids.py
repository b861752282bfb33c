"""Event ids on their way out: each leaves signed, for the session of its stream, or for its caller alone.

`_tokens.event_ids` has what is signed, and `transport` verifies the ids that come back.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Final

import msgspec
from starlette.types import Message as ASGIMessage
from starlette.types import Scope, Send

from .._protocol import rewrite
from .._protocol.headers import EVENTS, JSON, content_type, independent_of_body
from .._protocol.sse import IdLines
from .._refusals import refusal as refusal_for
from .._session.claims import Claims, RedactedRepr
from .._tokens.event_ids import MAX_EVENT_ID_BYTES, EventId, session_of
from .context import Request, session_header_values
from .resumption import Call

if TYPE_CHECKING:
    from .._protocol.jsonrpc import Message
    from .runtime import Runtime

_log: Final = logging.getLogger("mcp_sessions")


class EventSigner(RedactedRepr, msgspec.Struct, eq=False):
    """Signs the event ids of one response, for the session that its stream belongs to, or for its caller alone."""

    runtime: Runtime
    scope: Scope  # before the application changed it: it says who the caller is
    claims: Claims | None  # of the stream's session
    server_id: str | None  # of the wrapped server's transport session
    call: Call | None = None  # that the stream answers
    lines: IdLines = msgspec.field(default_factory=IdLines)
    has_signed: bool = False

    def feed(self, part: bytes, last_text: bytes = b"") -> bytes:
        """Return a part of the stream with signed ids; `last_text` is the last message in it or before it."""
        return self.lines.feed(part, lambda value: self.sign(value, last_text))

    def end(self) -> bytes:
        """Return what was held back of a stream that has ended."""
        return self.lines.end(self.sign)

    def signed(self, event: ASGIMessage) -> ASGIMessage:
        """Return a part of a response body that passes with signed ids."""
        body, more = event.get("body", b""), event.get("more_body", False)
        passed = self.feed(body) if more else self.feed(body) + self.end()
        return event if passed == body else {**event, "body": passed}

    def sign(self, value: bytes, last_text: bytes = b"") -> bytes | None:
        """Return the id that the client gets for the server's, or None if it would be too long for a header."""
        runtime, call, claims = self.runtime, self.call, self.claims
        key = runtime.ring(runtime.clock()).signing
        if claims is None:
            event = EventId(value, key.subject(runtime.principal(self.scope)))
        elif call is None:
            event = EventId(value, claims.subject, session=session_of(claims))
        else:
            event = EventId(
                value,
                claims.subject,
                session=session_of(claims),
                call=runtime.calls.name(call),
                request_id=call.id,
                answered=call.learn_answer(last_text),
            )
        signed = runtime.event_ids.sign(key, event, self.server_id)
        self.has_signed = self.has_signed or signed is not None
        if signed is None:
            _log.error(
                "left out an event id of the server that takes more than %d bytes with its request's id, so streams "
                "cannot be resumed from such events: use shorter ids in the event store",
                MAX_EVENT_ID_BYTES,
            )
        return signed


def signer_for(request: Request, scope: Scope, start: ASGIMessage, call: Call | None = None) -> EventSigner:
    """Return what signs the event ids of a response for the session of its request, and else for its caller."""
    named = [*session_header_values(start), None]
    session = None if request.session is None else request.session._claims
    claims = session if call is None else call.claims
    return EventSigner(request.runtime, scope, claims, request.server_id or named[0], call)


def signing_send(request: Request) -> Send:
    """Return a `send` that passes a response on and signs only its event ids."""
    scope, send_out, signer = dict(request.scope), request.send, None

    def send(event: ASGIMessage) -> Awaitable[None]:  # not a coroutine: most answers are not event streams
        nonlocal signer
        if event["type"] == "http.response.start":
            media_type, coding = content_type(event.get("headers", ()))
            if media_type == EVENTS and can_sign(coding):
                signer = signer_for(request, scope, event)
                event = of_any_length(event)
        elif signer is not None and event["type"] == "http.response.body":
            event = signer.signed(event)
        return send_out(event)

    return send


def of_any_length(start: ASGIMessage) -> ASGIMessage:
    """Return the start of an event stream without what announces its bytes, which signed ids change."""
    headers = independent_of_body(start["headers"])
    return start if len(headers) == len(start["headers"]) else {**start, "headers": headers}


def can_sign(coding: bytes | None) -> bool:
    """Return True if event ids can be signed; if not, they are refused when a client sends them back."""
    if coding is not None:
        _log.error("a compressed event stream cannot be resumed: put compression outside MCPSessionMiddleware")
    return coding is None


async def refuse_compressed(request: Request, message: Message | None, send: Send) -> None:
    """Answer in place of an event stream that can neither carry its session nor end with it."""
    refusal = refusal_for("events_compressed")
    if message is None or request.message is None:
        request.record_refused(refusal, request.scope["method"])
        body = rewrite.error(None, refusal.code, refusal.client_message)
    else:
        body = request.refusal_body(refusal)
    length, no_store = (b"content-length", b"%d" % len(body)), (b"cache-control", b"no-store")
    headers = [(b"content-type", JSON), length, no_store]
    await send({"type": "http.response.start", "status": refusal.http_status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
