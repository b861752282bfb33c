"""The response on its way out: JSON as a whole, an event stream event by event, all else untouched.

`Responder` stands in for `send`. A JSON response is held until it is complete, since its length may
change; an event stream is never held beyond one event. What a message becomes is decided by the
`rewrite` that is handed in; where that returns None the server's own bytes go out.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Any, Final

import anyio
from anyio.lowlevel import checkpoint
from starlette.types import Message, Send

from . import splice
from .errors import Refusal
from .sse import Event, EventStream
from .streams import Origin, Streams
from .tokens import Claims

Rewrite = Callable[[bytes], bytes | None]
"""Takes one JSON-RPC message as the server wrote it; returns its replacement, or None to leave it."""

Save = Callable[[bytes], Awaitable[bytes | None]]
"""The same, where something has to be kept before the message leaves."""

BODY_AROUND_US: Final = frozenset({"http.response.pathsend", "http.response.zerocopysend"})
"""ASGI extensions by which a body would leave without passing here."""

_OF_THE_OLD_BODY: Final = frozenset(
    {b"content-length", b"transfer-encoding", b"etag", b"content-digest", b"repr-digest", b"digest", b"content-md5"}
)

_OK: Final = 200
_PATIENCE: Final = 0.5  # seconds for the last event of a stream whose session has ended
_log: Final = logging.getLogger("mcp_sessions")


@dataclass(frozen=True, slots=True)
class Watched:
    """What ends an answer before its time.

    Args:
        origin: The request that is answered.
        transport: The wrapped server's transport session that it came by, or None.
        streams: The streams of this process, among which it is noted while it is open.
        told: Gives what its client is told when it is cut, as JSON, or nothing.
        is_spared: Whether it goes on all the same.
    """

    origin: Origin
    transport: str | None
    streams: Streams
    told: Callable[[], bytes]
    is_spared: Callable[[], bool]

    async def is_over(self) -> bool:
        """Whether the session has ended meanwhile, so that its answer is nobody's any more."""
        return not self.is_spared() and await self.streams.has_ended(self.origin.claims)


class Responder:
    """One response that may have to be changed, and to end when its session does.

    Args:
        send: The server's `send`.
        rewrite: What a JSON-RPC message becomes.
        watch: Gives what ends an answer, when that is looked at; None where it ends by itself only.
        late_at: When the session may have ended since the store was asked, Unix seconds.
        clock: Unix seconds.
        save: Stands in for `rewrite` where something has to be kept first, or None.
        max_event_bytes: Bytes of one event that are held at the most; a longer one passes unchanged.
    """

    __slots__ = (
        "_body",
        "_clock",
        "_events",
        "_handle",
        "_is_cut",
        "_is_sending",
        "_late_at",
        "_max_event_bytes",
        "_rewrite",
        "_save",
        "_send",
        "_start",
        "_watch",
        "_watched",
    )

    def __init__(
        self,
        send: Send,
        rewrite: Rewrite,
        watch: Callable[[], Watched] | None,
        *,
        late_at: float = inf,
        clock: Callable[[], float] = time.time,
        save: Save | None = None,
        max_event_bytes: int,
    ) -> None:
        self._send = send
        self._rewrite = rewrite
        self._watch = watch
        self._late_at = late_at
        self._clock = clock
        self._save = save
        self._watched: Watched | None = None
        self._max_event_bytes = max_event_bytes
        self._handle: Send = send
        self._start: Message = {}
        self._body: list[bytes] = []
        self._events: EventStream | None = None
        self._is_sending = False
        self._is_cut = False

    async def __call__(self, message: Message) -> None:
        if self._is_cut:  # the stream has ended, whatever the application goes on to say
            await checkpoint()  # and it may say it in a loop that has nothing else to wait for
            return
        kind = message["type"]
        if kind == "http.response.start":
            await self._begin(message)
        elif kind == "http.response.body":
            await self._handle(message)
        else:
            await self._send(message)

    @property
    def claims(self) -> Claims:
        """The session that the stream belongs to."""
        assert self._watched is not None
        return self._watched.origin.claims

    @property
    def is_spared(self) -> bool:
        """Whether the stream goes on when its session ends."""
        assert self._watched is not None
        return self._watched.is_spared()

    async def cut(self) -> None:
        """End the stream: its session has ended. What is being sent goes out before."""
        self._is_cut = True
        if not self._is_sending:
            await self._close()

    def leave(self) -> None:
        """Forget the stream: the application has said all."""
        if self._watched is not None:
            self._watched.streams.remove(self)

    async def _close(self) -> None:
        assert self._watched is not None
        # The blank line ends an event that was too large to be held and is half sent; elsewhere it means nothing.
        told = self._watched.told()
        body = b"\n\ndata: %b\n\n" % told if told else b""
        # Whoever ends a session does not wait for a client that does not read, nor mind one that has gone.
        with anyio.move_on_after(_PATIENCE), suppress(Exception):
            await self._send({"type": "http.response.body", "body": body, "more_body": False})

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
            if self._watch is not None:
                await self._open(self._watch())
        else:
            self._handle = self._send
            await self._send(start)

    async def _open(self, watched: Watched) -> None:
        self._watched = watched
        watched.streams.add(self)
        if self._late_at <= self._clock() and await watched.is_over():
            watched.streams.remove(self)
            await self.cut()

    async def _collect(self, message: Message) -> None:
        self._body.append(message.get("body", b""))
        if message.get("more_body", False):
            return
        body, start = b"".join(self._body), self._start
        self._body = []
        if self._late_at <= self._clock() and (told := await self._told(start)) is not None:
            changed: bytes | None = told
        else:
            changed = self._rewrite(body) if self._save is None else await self._save(body)
        if changed is None:
            await self._send(start)
            await self._send({**message, "body": body})
        else:
            headers = _fit(start)
            headers.append((b"content-length", b"%d" % len(changed)))
            await self._send({**start, "headers": headers})
            await self._send({**message, "body": changed})

    async def _told(self, start: Message) -> bytes | None:
        """What takes the place of a result whose session has ended meanwhile."""
        assert self._watch is not None
        watched = self._watch()
        return watched.told() if start["status"] == _OK and await watched.is_over() else None

    async def _stream(self, message: Message) -> None:
        assert self._events is not None
        more = message.get("more_body", False)
        pieces = [await self._event(event) for event in self._events.feed(message.get("body", b""))]
        if self._is_cut:  # while something was kept
            return
        if not more:
            pieces.append(self._events.end())
        body = b"".join(pieces)
        if body or not more:
            await self._send_whole({**message, "body": body})
        if not more:
            self.leave()

    async def _send_whole(self, message: Message) -> None:
        self._is_sending = True
        try:
            await self._send(message)
        finally:
            self._is_sending = False
        if self._is_cut and message.get("more_body", False):
            await self._close()

    async def _event(self, event: Event) -> bytes:
        if event.oversized:
            _log.error("an event of over %d bytes passed without its session (max_event_bytes)", self._max_event_bytes)
        if self._watched is not None and (event_id := event.id) is not None:
            self._watched.streams.remember(self._watched.transport, event_id, self._watched.origin)
        if event.data is None:
            return event.raw
        changed = self._rewrite(event.data) if self._save is None else await self._save(event.data)
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


async def refuse(
    send: Send,
    refusal: Refusal,
    *,
    status: int,
    code: int,
    id: bytes | None = None,
    data: dict[str, Any] | None = None,
) -> None:
    """Send a refusal.

    Args:
        send: The server's `send`.
        refusal: What is refused, and what the client is told of it.
        status: HTTP status.
        code: JSON-RPC code.
        id: The request's id as JSON, or None.
        data: `error.data`, or None.
    """
    retry = [] if refusal.retry_after is None else [(b"retry-after", b"%d" % refusal.retry_after)]
    await respond(send, status, splice.error(id, code, refusal.told, data), *retry)
