"""The response on its way out: JSON as a whole, an event stream event by event, all else untouched.

`Responder` stands in for `send`. A JSON response is held until it is complete, since its length may
change; an event stream is never held beyond one event. What a message becomes is decided by the
`rewrite` that is handed in; where that returns None the server's own bytes go out.

What is written into a response: the session into its result, sessions into the capabilities.

Only a successful answer to the request itself is touched; errors, notifications and everything else
on the same stream keep the server's bytes.

The answer to `initialize`, held until it is known to be a success, so that a session can be named in its head.

A server that names a transport session of its own keeps it. A failed `initialize` is an HTTP 200 when it
comes as an event stream, so the head waits for the result itself. Nothing here mints: it asks for the
session when it is due, and where there is none to be had the answer goes out as it is.

The answer to an `initialize` that begins a session by SEP-1364: named at its top, and in its head if mirrored there.

The session is made, or the given one taken, only when the server's success is seen. Nothing here mints: it
asks for the session when it is due, and where that is refused the client gets the refusal for an answer.
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
import msgspec
from anyio.lowlevel import checkpoint
from starlette.types import Message as ASGIMessage
from starlette.types import Send

from .._protocol import rewrite
from .._protocol.decision import ADVERTISING
from .._protocol.headers import SESSION_HEADER
from .._protocol.jsonrpc import Message
from .._protocol.sse import Event, EventStream
from .._session.claims import SESSION, Claims, RedactedRepr
from ..errors import DataError, Refusal, StateError, StoreUnavailable
from .sessions import ActiveSession
from .streams import Origin, Streams

Rewrite = Callable[[bytes], bytes | None]
"""Takes one JSON-RPC message as the server wrote it; returns its replacement, or None to leave it."""

Save = Callable[[bytes], Awaitable[bytes | None]]
"""The same, where something has to be kept before the message leaves."""


Headers = list[tuple[bytes, bytes]]
JSON: Final = b"application/json"
_OF_THE_OLD_BODY: Final = frozenset(
    {b"content-length", b"transfer-encoding", b"etag", b"content-digest", b"repr-digest", b"digest", b"content-md5"}
)

_OK: Final = 200
_PATIENCE: Final = 0.5  # seconds for the last event of a stream whose session has ended
_log: Final = logging.getLogger("mcp_sessions")


class Watched(msgspec.Struct, frozen=True):
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


class Responder(RedactedRepr, msgspec.Struct, eq=False):
    """One response that may have to be changed, and to end when its session does. (A struct, since one is made per
    request, and a class takes three times as long to make.)

    Args:
        send: The server's `send`.
        rewrite: What a JSON-RPC message becomes.
        watch: Gives what ends an answer, when that is looked at; None where it ends by itself only.
        late_at: When the session may have ended since the store was asked, Unix seconds.
        clock: Unix seconds.
        save: Stands in for `rewrite` where something has to be kept first, or None.
        max_event_bytes: Bytes of one event that are held at the most; a longer one passes unchanged.
        held: The start of a JSON response, and its headers that stay true of a changed body, until that is complete.
        pieces: What there is of that body, where it comes in several.
        events: What splits an event stream.
        watched: What ends it.
        is_sending: Whether events are on their way just now.
        is_cut: Whether the stream was ended before its time.
    """

    send: Send
    rewrite: Rewrite
    watch: Callable[[], Watched] | None
    max_event_bytes: int
    late_at: float = inf
    clock: Callable[[], float] = time.time
    save: Save | None = None
    held: tuple[ASGIMessage, Headers] | None = None
    pieces: list[bytes] = []  # each struct gets its own
    events: EventStream | None = None
    watched: Watched | None = None
    is_sending: bool = False
    is_cut: bool = False

    def __call__(self, message: ASGIMessage) -> Awaitable[None]:
        if self.is_cut:  # the stream has ended, whatever the application goes on to say
            return checkpoint()  # and it may say it in a loop that has nothing else to wait for
        kind = message["type"]
        if kind == "http.response.body":
            if self.held is not None:
                return self._collect(message)
            if self.events is not None:
                return self._stream(message)
        elif kind == "http.response.start":
            return self._begin(message)
        return self.send(message)

    @property
    def claims(self) -> Claims:
        """The session that the stream belongs to."""
        assert self.watched is not None
        return self.watched.origin.claims

    @property
    def is_spared(self) -> bool:
        """Whether the stream goes on when its session ends."""
        assert self.watched is not None
        return self.watched.is_spared()

    async def cut(self) -> None:
        """End the stream: its session has ended. What is being sent goes out before."""
        self.is_cut = True
        if not self.is_sending:
            await self._close()

    def leave(self) -> None:
        """Forget the stream: the application has said all."""
        if self.watched is not None:
            self.watched.streams.remove(self)

    async def _close(self) -> None:
        assert self.watched is not None
        # The blank line ends an event that was too large to be held and is half sent; elsewhere it means nothing.
        told = self.watched.told()
        body = b"\n\ndata: %b\n\n" % told if told else b""
        # Whoever ends a session does not wait for a client that does not read, nor mind one that has gone.
        with anyio.move_on_after(_PATIENCE), suppress(Exception):
            await self.send({"type": "http.response.body", "body": body, "more_body": False})

    async def _begin(self, start: ASGIMessage) -> None:
        media_type, coding = b"", None
        kept: Headers = []  # what stays true of a body that was changed
        for header in start.get("headers", ()):
            name = header[0].lower()
            if name == b"content-type":
                media_type = header[1]
            elif name == b"content-length" or name in _OF_THE_OLD_BODY:  # comparing is a fifth of hashing
                continue
            elif name == b"content-encoding":
                coding = header[1].lower()
            kept.append(header)
        if media_type != JSON:
            media_type = media_type.partition(b";")[0].strip().lower()
        if coding is not None and coding != b"identity":
            _log.error("a compressed response cannot carry its session: put compression outside MCPSessionMiddleware")
            media_type = b""
        if media_type == JSON:
            self.held = start, kept
        elif media_type == b"text/event-stream":
            self.events = EventStream(max_event_bytes=self.max_event_bytes)
            await self.send({**start, "headers": kept})
            if self.watch is not None:
                await self._open(self.watch())
        else:
            await self.send(start)

    async def _open(self, watched: Watched) -> None:
        self.watched = watched
        watched.streams.add(self)
        if self.late_at <= self.clock() and await watched.is_over():
            watched.streams.remove(self)
            await self.cut()

    async def _collect(self, message: ASGIMessage) -> None:
        assert self.held is not None
        body = message.get("body", b"")
        if self.pieces or message.get("more_body", False):
            self.pieces.append(body)
            if message.get("more_body", False):
                return
            body, self.pieces = b"".join(self.pieces), []
        (start, headers), self.held = self.held, None
        changed = await self._told(start) if self.late_at <= self.clock() else None
        if changed is None:
            changed = self.rewrite(body) if self.save is None else await self.save(body)
        if changed is not None:
            headers.append((b"content-length", b"%d" % len(changed)))
            start, body = dict(start), changed
            start["headers"] = headers
        message = dict(message)
        message["body"] = body
        await self.send(start)
        await self.send(message)

    async def _told(self, start: ASGIMessage) -> bytes | None:
        """What takes the place of a result whose session has ended meanwhile."""
        assert self.watch is not None
        watched = self.watch()
        return watched.told() if start["status"] == _OK and await watched.is_over() else None

    async def _stream(self, message: ASGIMessage) -> None:
        assert self.events is not None
        body, more = message.get("body", b""), message.get("more_body", False)
        pieces = []
        for event in self.events.feed(body):
            self._note(event)
            text = event.data
            changed = None if text is None else self.rewrite(text) if self.save is None else await self.save(text)
            pieces.append(event.raw if changed is None else event.with_data(changed))
        if self.is_cut:  # while something was kept
            return
        if not more:
            pieces.append(self.events.end())
        passed = b"".join(pieces)
        if passed or not more:
            self.is_sending = True
            try:
                await self.send(message if passed == body else {**message, "body": passed})
            finally:
                self.is_sending = False
        if not more:
            self.leave()
        elif self.is_cut:
            await self._close()  # type: ignore[unreachable]  # it was cut while something was sent

    def _note(self, event: Event) -> None:
        if event.oversized:
            _log.error("an event of over %d bytes passed without its session (max_event_bytes)", self.max_event_bytes)
        if self.watched is not None and (event_id := event.id) is not None:
            self.watched.streams.remember(self.watched.transport, event_id, self.watched.origin)


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
    await respond(send, status, rewrite.error(id, code, refusal.client_message, data), *retry)


_INTERNAL_ERROR: Final = -32603


class WriteBack(RedactedRepr, msgspec.Struct):
    """The changes that one request's answer needs; calling it makes them. (A struct, as one is made per request.)

    Args:
        request_id: The request's id as JSON.
        live: The session to echo or to save, or None.
        settings: What to advertise, as JSON, or None.
        capability: What `capabilities.sessions` says, as JSON.
        saves: Whether the session's state has to be kept before its answer leaves: its client carries none.
    """

    request_id: bytes
    live: ActiveSession | None
    settings: bytes | None
    capability: bytes
    saves: bool

    @classmethod
    def of(
        cls, message: Message, live: ActiveSession | None, settings: bytes, capability: bytes = b"{}"
    ) -> WriteBack | None:
        """The changes that a message's answer needs, or None where it needs none."""
        request_id = message.id  # only a request has one
        advertised = settings if message.method in ADVERTISING else None
        if request_id is None or (live is None and advertised is None):
            return None
        return cls(request_id, live, advertised, capability, live is not None and live.claims.kind != SESSION)

    def __call__(self, text: bytes) -> bytes | None:
        """One JSON-RPC message of the response, changed, or None where it stays as it is."""
        changed = None if self.settings is None else self._advertised(text, self.settings)
        if self.live is None or self.saves:
            return changed
        try:
            return rewrite.echo(text if changed is None else changed, self.request_id, self.live.echo)
        except StateError as error:
            return self._failed(error)

    def _advertised(self, text: bytes, settings: bytes) -> bytes | None:
        return rewrite.advertise(text, self.request_id, settings, self.capability)

    async def save(self, text: bytes) -> bytes | None:
        """As calling it, where `saves`: the state is kept if the message is the answer."""
        assert self.live is not None
        try:
            if rewrite.is_answer(text, self.request_id):
                await self.live.save()
        except (StateError, DataError, StoreUnavailable) as error:
            return self._failed(error)
        return self(text)

    def _failed(self, error: Exception) -> bytes:
        return rewrite.error(self.request_id, _INTERNAL_ERROR, str(error))


Mint = Callable[[], Awaitable[str | None]]
"""Gives the id of a new transport session, or None where the client gets none."""

_NOT_LIMITED: Final = 1 << 62  # bytes: what is held here is one answer, which the responder has bounded


class Handshake:
    """A `send` that names a new session in the head of a successful answer.

    Args:
        send: The server's `send`.
        request_id: JSON text of the request's id.
        mint: Called once, when the success is seen.
    """

    __slots__ = ("_events", "_held", "_mint", "_request_id", "_send")

    def __init__(self, send: Send, request_id: bytes, mint: Mint) -> None:
        self._send = send
        self._request_id = request_id
        self._mint = mint
        self._held: list[ASGIMessage] | None = None  # None: nothing is held, or nothing any more
        self._events = EventStream(max_event_bytes=_NOT_LIMITED)

    async def __call__(self, message: ASGIMessage) -> None:
        if message["type"] == "http.response.start" and self._may_name(message):
            self._held = [message]
        elif self._held is None:
            await self._send(message)
        else:
            self._held.append(message)
            await self._consider(message)

    def _may_name(self, start: ASGIMessage) -> bool:
        """Whether an answer may be a success in which the server has named no session of its own."""
        names = {name.lower() for name, _ in start.get("headers", ())}
        return bool(start["status"] == 200 and SESSION_HEADER not in names)

    async def _consider(self, message: ASGIMessage) -> None:
        body = message.get("body", b"")
        texts = [event.data for event in self._events.feed(body)]
        is_success = any(text is not None and rewrite.is_answer(text, self._request_id) for text in [body, *texts])
        if is_success:
            await self._name(await self._mint())
        elif not message.get("more_body", False):
            await self._name(None)

    async def _name(self, session_id: str | None) -> None:
        assert self._held is not None
        (start, *rest), self._held = self._held, None
        if session_id is not None:
            named = (SESSION_HEADER, session_id.encode("ascii"))
            start = {**start, "headers": [*start.get("headers", ()), named]}
        for message in (start, *rest):
            await self._send(message)


@dataclass(frozen=True, slots=True)
class Opened:
    """A session that an `initialize` has begun or gone on with.

    Args:
        id: Its id.
        in_head: Whether the answer's head names it, too.
    """

    id: str
    in_head: bool


Open = Callable[[bytes, "str | None"], Awaitable[Opened]]
"""Gives the session, from the successful answer and the transport session that the server named in its head."""


class Opening:
    """A `send` that names a session in a successful answer to `initialize`.

    Args:
        send: The server's `send`.
        request_id: JSON text of the request's id.
        opened: Called once, when the success is seen; may raise a `Refusal`.
        failed: Gives the answer that tells of a refusal.
        max_event_bytes: Bytes of one event that are held at the most.
    """

    __slots__ = ("_failed", "_opened", "_own", "_request_id", "_responder", "_session")

    def __init__(
        self, send: Send, request_id: bytes, opened: Open, failed: Callable[[Refusal], bytes], *, max_event_bytes: int
    ) -> None:
        self._request_id = request_id
        self._opened = opened
        self._failed = failed
        self._own: str | None = None
        self._session: Opened | None = None
        handshake = Handshake(send, request_id, self._named_in_head)
        self._responder: Final = Responder(
            handshake, _unchanged, None, save=self._answer, max_event_bytes=max_event_bytes
        )

    async def __call__(self, message: ASGIMessage) -> None:
        if message["type"] == "http.response.start":
            own = {name.lower(): value for name, value in message.get("headers", ())}.get(SESSION_HEADER)
            self._own = None if own is None else own.decode("latin-1")
        await self._responder(message)

    async def _answer(self, text: bytes) -> bytes | None:
        if not rewrite.is_answer(text, self._request_id):
            return None
        try:
            self._session = await self._opened(text, self._own)
        except Refusal as refusal:
            return self._failed(refusal)
        return rewrite.with_field(text, self._request_id, self._session.id)

    async def _named_in_head(self) -> str | None:
        session = self._session
        return session.id if session is not None and session.in_head else None


def _unchanged(_text: bytes) -> None:
    """What stands in for a change that has to wait for something else."""
