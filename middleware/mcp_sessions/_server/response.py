"""The response on its way out: JSON as a whole, an event stream event by event, all else untouched.

`ResponseFilter` stands in for `send`. It holds the start of a response, since its length may change and a new session
may have to be named in its headers; it splits event streams, and ends one whose session has ended. What a message
becomes is up to its rewrites; where they leave it alone the server's bytes go out.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, Final

import anyio
import msgspec
from anyio.lowlevel import checkpoint
from starlette.types import Message as ASGIMessage
from starlette.types import Send

from .._errors import Refusal, StateError
from .._protocol import rewrite
from .._protocol.headers import SESSION_HEADER
from .._protocol.sse import EventStream
from .._session.claims import Claims, RedactedRepr
from .sessions import ActiveSession
from .streams import StreamGuard

if TYPE_CHECKING:
    from ..telemetry._outcome import RequestTelemetry

Headers = list[tuple[bytes, bytes]]
INTERNAL_ERROR: Final = -32603
JSON: Final = b"application/json"
EVENTS: Final = b"text/event-stream"
OF_ONE_BODY: Final = frozenset(
    {b"content-length", b"transfer-encoding", b"etag", b"content-digest", b"repr-digest", b"digest", b"content-md5"}
)
_OK: Final = 200
OBSERVED: Final = 1 << 20  # bytes of one message that telemetry reads: an error has no more
_PATIENCE: Final = 0.5  # seconds for the last event of a stream whose session has ended
_log: Final = logging.getLogger("mcp_sessions")


def echo(text: bytes, request_id: bytes, session: ActiveSession | None) -> bytes | None:
    """Return the answer with a session, or the error that takes its place where the state cannot be kept."""
    try:
        return None if session is None else rewrite.echo(text, request_id, session.metadata)
    except StateError as error:
        return rewrite.error(request_id, INTERNAL_ERROR, str(error))


class Rewrite(msgspec.Struct, eq=False):
    """One thing that a response may need.

    Args:
        holds: Whether the start of an event stream has to wait, since a session may be named there.
        reads_any_type: Whether it looks for the success in a body of any type, and changes none.
    """

    holds: bool = False
    reads_any_type: bool = False
    is_repeatable: ClassVar[bool] = False  # whether it needs to be done again in a resumed stream

    def on_start(self, start: ASGIMessage) -> ASGIMessage:
        """Return the start of the response as it leaves."""
        return start

    async def on_text(self, text: bytes, response: ResponseFilter) -> bytes | None:
        """Return what takes the place of a JSON-RPC message of the response, or None to leave it."""


class ResponseFilter(RedactedRepr, msgspec.Struct, eq=False):
    """A `send` for one response. (A struct, since one is made per request, and a class takes three times as long.)"""

    send: Send
    request_id: bytes  # as JSON
    echoed: ActiveSession | None  # the session to write into the answer where there are no rewrites
    rewrites: tuple[Rewrite, ...]  # what the answer needs, in this order; what translates ids comes first
    make_guard: Callable[..., StreamGuard] | None = None  # gives what ends the response before its time
    max_event_bytes: int = OBSERVED  # that are held; a longer event passes unchanged
    late_at: float = inf  # when the session may have ended since the store was asked, Unix seconds
    clock: Callable[[], float] = time.time
    observer: RequestTelemetry | None = None  # what learns how the request ended
    is_passing: bool = False  # the body leaves part by part as it came, and is observed at the most
    guarded: tuple[Any, ...] = ()  # what `make_guard` is called with: a partial takes three times as long

    is_opaque: bool = False  # its body has a type that is not changed
    start: ASGIMessage | None = None  # while it is held
    kept: Headers = []  # that stay true of a changed body; each struct gets its own
    named: tuple[tuple[bytes, bytes], ...] = ()  # what names a new session comes last
    session_id: str | None = None  # that the headers name
    answer: bytes | None = None  # the success, as far as it is changed, once it was recognized
    pieces: list[bytes] | None = None  # of a JSON body that comes in several
    size: int = 0  # the bytes of these, where they are observed
    events: EventStream | None = None
    waiting: tuple[ASGIMessage, ...] = ()  # parts of an event stream that wait for its start
    guard: StreamGuard | None = None  # from when the stream is open
    is_sending: bool = False  # events are on their way just now
    is_resumable: bool = False  # its client has an event id
    last_text: bytes = b""  # of its events, as it left
    is_over: bool = False  # it was ended before its time
    refusal: Refusal | None = None  # why, where its session has not simply ended

    def __call__(self, message: ASGIMessage) -> Awaitable[None]:
        # It picks the coroutine that does the work: to be one itself would cost each part of a response a second.
        if self.is_over:  # whatever the application goes on to send
            return checkpoint()  # and it may do so in a loop that has nothing else to wait for
        kind = message["type"]
        if kind == "http.response.body":
            if self.is_passing:
                self._observe_part(message.get("body", b""), message.get("more_body", False))
            elif self.events is not None:
                return self._stream(message, self.events)
            elif self.start is not None:
                return self._collect(message)
        elif kind == "http.response.start":
            if self.observer is not None:
                self.observer.status = message["status"]
            return self._begin_passing(message) if self.is_passing else self._begin(message)
        return self.send(message)

    # --- its start ---------------------------------------------------------------------------

    async def _begin(self, start: ASGIMessage) -> None:
        start = self._read_start(start) if self.rewrites else start
        media_type, coding, kept = b"", None, self.kept
        for header in start.get("headers", ()):
            name = header[0].lower()
            if name == b"content-type":
                media_type = header[1]
            elif name == b"content-length" or name in OF_ONE_BODY:  # comparing is a fifth of hashing
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
            self.start = start
        elif media_type == EVENTS:
            await self._open({**start, "headers": kept})
        else:
            await self._begin_opaque(start)

    def _read_start(self, start: ASGIMessage) -> ASGIMessage:
        """Find the session that the server names, and return the start with ours in its place across the bridge."""
        start = self.rewrites[0].on_start(start)  # what translates ids comes first
        for name, value in start.get("headers", ()):
            if name.lower() == SESSION_HEADER:
                self.session_id = value.decode("latin-1")
        if self.session_id is not None or start["status"] != _OK:  # none of ours is to be named
            for change in self.rewrites:
                change.holds = False
        return start

    async def _begin_passing(self, start: ASGIMessage) -> None:
        types = [value for name, value in start.get("headers", ()) if name.lower() == b"content-type"]
        media_type = types[0].partition(b";")[0].strip().lower() if types else b""
        if media_type == EVENTS:
            self.events = EventStream(max_event_bytes=OBSERVED)
        elif media_type != JSON:
            self.observer = None
        await self.send(self._read_start(start) if self.rewrites else start)

    async def _begin_opaque(self, start: ASGIMessage) -> None:
        """Begin a body that stays as it is; a success may be seen in it all the same, whatever its type."""
        self.observer = None
        self.rewrites = tuple([change for change in self.rewrites if change.holds and change.reads_any_type])
        if self.rewrites:
            self.start, self.is_opaque = start, True
            self.events = EventStream(max_event_bytes=self.max_event_bytes)
        else:
            await self.send(start)

    async def _open(self, start: ASGIMessage) -> None:
        self.events = EventStream(max_event_bytes=self.max_event_bytes)
        if any(change.holds for change in self.rewrites):
            self.start = start
        else:
            await self.send(start)
        if self.make_guard is not None:
            self.guard = guard = self.make_guard(*self.guarded)
            guard.streams.add(self)
            if self.late_at <= self.clock():
                await self._cut_if_refused(guard)

    def name(self, session_id: str) -> None:
        """Name a new session in the headers, which are still held."""
        self.session_id = session_id
        self.named = ((SESSION_HEADER, session_id.encode("ascii")),)

    def translate(self, session_id: str) -> None:
        """Name a session of ours where the server has named its own."""
        self.session_id = session_id
        header = (SESSION_HEADER, session_id.encode("ascii"))
        assert self.start is not None
        self.start = {**self.start, "headers": [*self.start["headers"], header]}
        self.kept = [*self.kept, header]

    # --- its body ----------------------------------------------------------------------------

    async def _collect(self, message: ASGIMessage) -> None:
        body, pieces = message.get("body", b""), self.pieces
        if pieces is not None or message.get("more_body", False):
            self.pieces = pieces = pieces or []
            pieces.append(body)
            if message.get("more_body", False):
                return
            body = b"".join(pieces)
        changed = await self._cut_answer() if self.late_at <= self.clock() else None
        if changed is None:
            changed = await self._rewritten(body) if self.rewrites else echo(body, self.request_id, self.echoed)
            if self.is_over:
                return
        start, self.start = self.start, None
        assert start is not None
        if changed is not None:
            self.kept.append((b"content-length", b"%d" % len(changed)))
            start, body = dict(start, headers=self.kept), changed
        if self.named:
            start = {**start, "headers": [*start["headers"], *self.named]}
        if self.observer is not None:
            self._observe(body)
        await self.send(start)
        await self.send(dict(message, body=body))

    async def _cut_answer(self) -> bytes | None:
        """Return what takes the place of a result whose session has ended meanwhile."""
        assert self.make_guard is not None and self.start is not None  # noqa: PT018
        guard = self.make_guard(*self.guarded)
        refusal = await guard.refusal() if self.start["status"] == _OK else None
        return None if refusal is None else guard.refused(refusal)

    async def _stream(self, message: ASGIMessage, events: EventStream) -> None:
        body, more = message.get("body", b""), message.get("more_body", False)
        pieces = []
        if self.is_opaque:
            await self._rewritten(body)
        for event in events.feed(body):
            if event.oversized:
                _log.error(
                    "forwarded an event of over %d bytes without its session (Limits.event_bytes)", self.max_event_bytes
                )
            if self.guard is not None and (event_id := event.id) is not None:
                self.is_resumable = True
                self.guard.events.remember(self.guard.transport, event_id, self.guard.origin)
            text, changed = event.data, None
            if text is not None and self.guard is not None and self.guard.is_in_doubt(text):
                await self._cut_if_refused(self.guard)
            if text is not None:
                changed = await self._rewritten(text) if self.rewrites else echo(text, self.request_id, self.echoed)
                self.last_text = text if changed is None else changed
                self._observe(self.last_text)
            pieces.append(event.raw if changed is None else event.with_data(changed))
        if self.is_over:  # while something was kept, or since it is refused
            return
        if not more:
            pieces.append(events.end())
        passed = b"".join(pieces)
        if passed or not more:
            await self._pass(message if passed == body else {**message, "body": passed}, more)

    async def _pass(self, message: ASGIMessage, more: bool) -> None:
        """Send a part of an event stream, or let it wait with the start."""
        if self.start is not None:
            self.waiting += (message,)
            if more and any(change.holds for change in self.rewrites):
                return
        self.is_sending = True
        try:
            if self.start is None:
                await self.send(message)
            else:
                await self._release(self.start)
        finally:
            self.is_sending = False
        if not more:
            self.close()
        elif self.is_over:
            await self._send_last()  # it was cut while something was sent

    async def _release(self, start: ASGIMessage) -> None:
        """Send the start of an event stream that was held, and what waits with it."""
        waiting, self.start, self.waiting = self.waiting, None, ()
        for message in ({**start, "headers": [*start["headers"], *self.named]}, *waiting):
            await self.send(message)

    async def _rewritten(self, text: bytes) -> bytes | None:
        changed = None
        for change in self.rewrites:
            replaced = await change.on_text(text if changed is None else changed, self)
            changed = changed if replaced is None else replaced
            if self.is_over:  # it has ended, or was refused
                break
        return changed

    def is_answer(self, text: bytes) -> bool:
        """Whether a message is the success that answers the request."""
        return text is self.answer or rewrite.is_answer(text, self.request_id)

    def _observe(self, text: bytes) -> None:
        if self.observer is not None and len(text) <= OBSERVED:
            self.observer.read(text)

    def _observe_part(self, part: bytes, more: bool) -> None:
        """Observe a part of a body that is not held: an event when it is complete, JSON with the last part."""
        if self.observer is None:
            return
        if self.events is not None:
            for event in self.events.feed(part):
                if event.data is not None:
                    self.observer.read(event.data)
            return
        pieces = self.pieces = self.pieces or []
        pieces.append(part)
        self.size += len(part)
        if self.size > OBSERVED:
            self.observer = self.pieces = None
        elif not more:
            self.observer.read(b"".join(pieces))

    # --- its session ends --------------------------------------------------------------------

    @property
    def claims(self) -> Claims:
        """The session that the stream belongs to."""
        assert self.guard is not None
        return self.guard.origin.claims

    @property
    def survives_end(self) -> bool:
        """Whether the stream goes on when its session ends."""
        assert self.guard is not None
        return self.guard.survives_end()

    async def cut(self, refusal: Refusal | None = None) -> None:
        """End the stream: its session has ended, or it is refused otherwise. What is being sent goes out before."""
        self.is_over, self.refusal = True, refusal
        if not self.is_sending:
            await self._send_last()

    async def _cut_if_refused(self, guard: StreamGuard) -> None:
        refusal = await guard.refusal()
        if refusal is not None and not self.is_over:
            guard.streams.remove(self)
            await self.cut(refusal)

    def close(self) -> None:
        """Take the stream off the list: the application has sent everything."""
        if self.guard is not None:
            self.guard.streams.remove(self)

    def cancel(self, transport: str | None, request_id: bytes | None) -> None:
        """Expect no answer any more if this is the request that its client has cancelled, or any (None)."""
        assert self.guard is not None
        self.guard.cancel(transport, request_id)

    def finish(self, session: ActiveSession) -> None:
        """Close the stream; a client that can resume it may still get its answer, and until then the state is open."""
        assert self.guard is not None
        self.close()
        if self.is_resumable:
            self.guard.events.keep(self.guard.origin, session, self)
        else:
            session.shut()

    async def fail(self, answer: Callable[[], Awaitable[None]], refusal: Refusal) -> bool:
        """Answer a request whose handler failed, as a whole or as the last event; False where its answer has left."""
        if not self.kept or (self.start is not None and self.events is None):  # nothing was sent so far
            await answer()
            return True
        if self.guard is None or self.is_over or self.guard.origin.is_settled_by(self.last_text):
            return False
        await self.cut(refusal)
        return True

    async def _send_last(self) -> None:
        assert self.guard is not None
        last = self.guard.last_message(self.refusal, self.last_text)
        # The blank line ends an event that was too large to be held and is half sent; elsewhere it means nothing.
        body = b"\n\ndata: %b\n\n" % last if last else b""
        # Ending a session does not wait for a client that does not read, nor fail for one that has gone.
        with anyio.move_on_after(_PATIENCE), suppress(Exception):
            if self.start is not None:
                await self._release(self.start)
            await self.send({"type": "http.response.body", "body": body, "more_body": False})
