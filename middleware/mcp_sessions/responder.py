"""The response on its way out: JSON as a whole, an event stream event by event, all else untouched.

`Responder` stands in for `send`. A JSON response is held until it is complete, since its length may
change; an event stream is never held beyond one event. What a message becomes is decided by the
`rewrite` that is handed in; where that returns None the server's own bytes go out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from starlette.types import Message, Send

from .sse import Event, EventStream

Rewrite = Callable[[bytes], bytes | None]
"""Takes one JSON-RPC message as the server wrote it; returns its replacement, or None to leave it."""

BODY_AROUND_US: Final = frozenset({"http.response.pathsend", "http.response.zerocopysend"})
"""ASGI extensions by which a body would leave without passing here."""

_OF_THE_OLD_BODY: Final = frozenset(
    {b"content-length", b"transfer-encoding", b"etag", b"content-digest", b"repr-digest", b"digest", b"content-md5"}
)

_log = logging.getLogger("mcp_sessions")


class Responder:
    """One response that may have to be changed.

    Args:
        send: The server's `send`.
        rewrite: What a JSON-RPC message becomes.
        max_event_bytes: Bytes of one event that are held at the most; a longer one passes unchanged.
    """

    __slots__ = ("_body", "_events", "_handle", "_max_event_bytes", "_rewrite", "_send", "_start")

    def __init__(self, send: Send, rewrite: Rewrite, *, max_event_bytes: int) -> None:
        self._send = send
        self._rewrite = rewrite
        self._max_event_bytes = max_event_bytes
        self._handle: Send = send
        self._start: Message = {}
        self._body: list[bytes] = []
        self._events: EventStream | None = None

    async def __call__(self, message: Message) -> None:
        kind = message["type"]
        if kind == "http.response.start":
            await self._begin(message)
        elif kind == "http.response.body":
            await self._handle(message)
        else:
            await self._send(message)

    async def _begin(self, start: Message) -> None:
        headers = {name.lower(): value for name, value in start.get("headers", ())}
        media_type = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if headers.get(b"content-encoding", b"identity").lower() != b"identity":
            _log.error("a compressed response cannot carry its session: put compression outside MCPSessionMiddleware")
            media_type = b""
        if media_type == b"application/json":
            self._start, self._handle = start, self._collect
        elif media_type == b"text/event-stream":
            self._events, self._handle = EventStream(max_event_bytes=self._max_event_bytes), self._stream
            await self._send({**start, "headers": _fit(start)})
        else:
            self._handle = self._send
            await self._send(start)

    async def _collect(self, message: Message) -> None:
        self._body.append(message.get("body", b""))
        if message.get("more_body", False):
            return
        body, start = b"".join(self._body), self._start
        self._body = []
        changed = self._rewrite(body)
        if changed is None:
            await self._send(start)
            await self._send({**message, "body": body})
        else:
            headers = _fit(start)
            headers.append((b"content-length", b"%d" % len(changed)))
            await self._send({**start, "headers": headers})
            await self._send({**message, "body": changed})

    async def _stream(self, message: Message) -> None:
        assert self._events is not None
        more = message.get("more_body", False)
        pieces = [self._event(event) for event in self._events.feed(message.get("body", b""))]
        if not more:
            pieces.append(self._events.end())
        body = b"".join(pieces)
        if body or not more:
            await self._send({**message, "body": body})

    def _event(self, event: Event) -> bytes:
        if event.oversized:
            _log.error("an event of over %d bytes passed without its session (max_event_bytes)", self._max_event_bytes)
        changed = None if event.data is None else self._rewrite(event.data)
        return event.raw if changed is None else event.with_data(changed)


def _fit(start: Message) -> list[tuple[bytes, bytes]]:
    """The headers that stay true of a body that was changed."""
    return [(name, value) for name, value in start.get("headers", ()) if name.lower() not in _OF_THE_OLD_BODY]


async def respond(send: Send, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    """Send a JSON answer of our own."""
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                (b"cache-control", b"no-store"),  # an answer may hold a credential
                *headers,
            ],
        }
    )
    await send({"type": "http.response.body", "body": body})
