"""The response on its way out: JSON as a whole, an event stream event by event, all else untouched.

`ResponseFilter` stands in for `send`. It alone holds the start of a response, since its length may change and a new
session may have to be named in its headers; it alone splits event streams, and it ends one whose session has ended.
What a message of the response becomes is up to its rewrites; where they leave it alone the server's bytes go out.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from math import inf
from typing import Final

import anyio
import msgspec
from anyio.lowlevel import checkpoint
from starlette.types import Message as ASGIMessage
from starlette.types import Send

from .._protocol import rewrite
from .._protocol.decision import ADVERTISING, ECHOES, Decision
from .._protocol.headers import ACCEPT_CODING, SESSION_HEADER
from .._protocol.jsonrpc import REQUEST, Message
from .._protocol.sse import EventStream
from .._protocol.strict_json import join
from .._session.claims import SESSION, Claims, RedactedRepr
from ..errors import SessionEnded, StateError
from .answers import refused_body
from .context import Bridged, RequestContext
from .rewrites import INTERNAL_ERROR, Rewrite, TranslateIds, rewrites_for
from .sessions import ActiveSession
from .streams import Origin, Streams

Headers = list[tuple[bytes, bytes]]
JSON: Final = b"application/json"
_OF_THE_OLD_BODY: Final = frozenset(
    {b"content-length", b"transfer-encoding", b"etag", b"content-digest", b"repr-digest", b"digest", b"content-md5"}
)
_OK: Final = 200
_PATIENCE: Final = 0.5  # seconds for the last event of a stream whose session has ended
_log: Final = logging.getLogger("mcp_sessions")


def response_filter(
    ctx: RequestContext, message: Message, decision: Decision, session: ActiveSession | None
) -> ResponseFilter | None:
    """Return what changes the answer to a message on its way out, or None where nothing does."""
    if message.kind is not REQUEST:
        return None
    runtime, echoes = ctx.runtime, decision.step in ECHOES
    is_plain = message.method not in ADVERTISING and runtime.rules.sep1364 is None
    if is_plain and (session is None or not echoes or session.claims.kind == SESSION):
        rewrites: tuple[Rewrite, ...] = ()
    else:
        rewrites = rewrites_for(ctx, message, session, echoes=echoes)
    if not rewrites and (session is None or not echoes):
        return None
    if ACCEPT_CODING in ctx.headers.by_name or ctx.scope.get("extensions"):
        ctx.keep_response_readable()
    return ResponseFilter(
        ctx.send,
        join(message.given_id),
        None if rewrites else session,
        rewrites,
        None if session is None else partial(_guard, ctx, message, session),
        runtime.limits.event_bytes,
        inf if session is None else session.late_at,
        runtime.clock,
    )


class StreamGuard(msgspec.Struct, frozen=True):
    """What ends a response before its time.

    Args:
        origin: The request that is answered.
        transport: The wrapped server's transport session that it came by, or None.
        streams: The streams of this process, among which it is listed while it is open.
        cut_body: Gives the last message to a client whose stream is cut, as JSON, or nothing.
        survives_end: Whether the response goes on all the same.
    """

    origin: Origin
    transport: str | None
    streams: Streams
    cut_body: Callable[[], bytes]
    survives_end: Callable[[], bool]

    async def is_over(self) -> bool:
        """Whether the session has ended meanwhile, so that its answer must not leave."""
        return not self.survives_end() and await self.streams.has_ended(self.origin.claims)


def _guard(ctx: RequestContext, message: Message, session: ActiveSession) -> StreamGuard:
    """Return what ends the answer to a request of a session."""
    own = None if ctx.headers.session_id is not None else ctx.headers.first(SESSION_HEADER)
    return StreamGuard(
        Origin(session.claims, message.id, message.label),
        ctx.bridge.server_id if isinstance(ctx.bridge, Bridged) else own,
        ctx.runtime.streams,
        cut_body=lambda: refused_body(ctx, message, SessionEnded(ref=session.claims.ref)),
        survives_end=lambda: session.ended_by_own_request,
    )


class ResponseFilter(RedactedRepr, msgspec.Struct, eq=False):
    """A `send` for one response. (A struct, since one is made per request, and a class takes three times as long.)

    Args:
        send: The server's `send`.
        request_id: The request's id as JSON.
        echoed: The session to write into the answer where there are no rewrites, or None.
        rewrites: What the answer needs, in this order.
        make_guard: Gives what ends the response, when that is looked at; None where it ends by itself only.
        max_event_bytes: Bytes of one event that are held at the most; a longer one passes unchanged.
        late_at: When the session may have ended since the store was asked, Unix seconds.
        clock: Unix seconds.
        is_opaque: Whether the body has a type that is not changed.
        reads_body: Whether more than the start of the response is looked at.
        start: The start of the response while it is held.
        kept: Its headers that stay true of a changed body.
        named: The header that names a new session; it comes last.
        session_id: The session that the headers name.
        answer: The success, as far as it is changed, once it was recognized.
        pieces: What there is of a JSON body that comes in several.
        events: What splits an event stream.
        waiting: Parts of an event stream that wait for its start.
        guard: What ends the stream, from when it is open.
        is_sending: Whether events are on their way just now.
        is_over: Whether the response was ended before its time.
    """

    send: Send
    request_id: bytes
    echoed: ActiveSession | None
    rewrites: tuple[Rewrite, ...]
    make_guard: Callable[[], StreamGuard] | None
    max_event_bytes: int
    late_at: float = inf
    clock: Callable[[], float] = time.time
    is_opaque: bool = False
    reads_body: bool = True
    start: ASGIMessage | None = None
    kept: Headers = []  # each struct gets its own
    named: Headers = []
    session_id: str | None = None
    answer: bytes | None = None
    pieces: list[bytes] = []
    events: EventStream | None = None
    waiting: list[ASGIMessage] = []
    guard: StreamGuard | None = None
    is_sending: bool = False
    is_over: bool = False

    def __call__(self, message: ASGIMessage) -> Awaitable[None]:
        # It picks the coroutine that does the work: to be one itself would cost each part of a response a second.
        if self.is_over:  # whatever the application goes on to send
            return checkpoint()  # and it may do so in a loop that has nothing else to wait for
        kind = message["type"]
        if kind == "http.response.body":
            if self.events is not None:
                return self._stream(message, self.events)
            if self.start is not None:
                return self._collect(message)
        elif kind == "http.response.start":
            return self._begin(message)
        return self.send(message)

    # --- its start ---------------------------------------------------------------------------

    async def _begin(self, start: ASGIMessage) -> None:
        if self.rewrites:
            start = self._read_start(start)
        media_type, coding, kept = b"", None, self.kept
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
        if coding is not None and coding != b"identity" and self.reads_body:
            _log.error("a compressed response cannot carry its session: put compression outside MCPSessionMiddleware")
            media_type = b""
        if media_type == JSON and self.reads_body:
            self.start = start
        elif media_type == b"text/event-stream" and self.reads_body:
            await self._open({**start, "headers": kept})
        else:
            await self._begin_opaque(start)

    def _read_start(self, start: ASGIMessage) -> ASGIMessage:
        """Find the session that the server names, and return the start with ours in its place across the bridge."""
        first = self.rewrites[0]
        if isinstance(first, TranslateIds):
            start = first.on_start(start)
        for name, value in start.get("headers", ()):
            if name.lower() == SESSION_HEADER:
                self.session_id = value.decode("latin-1")
        if self.session_id is not None or start["status"] != _OK:  # none of ours is to be named
            for change in self.rewrites:
                change.holds = False
        return start

    async def _begin_opaque(self, start: ASGIMessage) -> None:
        """Begin a body that stays as it is; a success may be seen in it all the same, whatever its type."""
        self.rewrites = tuple([change for change in self.rewrites if change.holds and change.reads_any_type])
        if self.rewrites:
            self.start, self.is_opaque = start, True
            self.events = EventStream(max_event_bytes=self.max_event_bytes)
        else:
            await self.send(start)

    async def _open(self, start: ASGIMessage) -> None:
        self.events = EventStream(max_event_bytes=self.max_event_bytes)
        if self.rewrites and self._is_held():
            self.start = start
        else:
            await self.send(start)
        if self.make_guard is not None:
            self.guard = guard = self.make_guard()
            guard.streams.add(self)
            if self.late_at <= self.clock() and await guard.is_over():
                guard.streams.remove(self)
                await self.cut()

    def _is_held(self) -> bool:
        return any(change.holds for change in self.rewrites)

    def name(self, session_id: str) -> None:
        """Name a new session in the headers, which are still held."""
        self.session_id = session_id
        self.named = [(SESSION_HEADER, session_id.encode("ascii"))]

    def translate(self, session_id: str) -> None:
        """Name a session of ours where the server has named its own."""
        self.session_id = session_id
        header = (SESSION_HEADER, session_id.encode("ascii"))
        assert self.start is not None
        self.start = {**self.start, "headers": [*self.start["headers"], header]}
        self.kept = [*self.kept, header]

    # --- its body ----------------------------------------------------------------------------

    async def _collect(self, message: ASGIMessage) -> None:
        body = message.get("body", b"")
        if self.pieces or message.get("more_body", False):
            self.pieces.append(body)
            if message.get("more_body", False):
                return
            body = b"".join(self.pieces)
        changed = await self._cut_answer() if self.late_at <= self.clock() else None
        if changed is None:
            changed = await self._rewritten(body) if self.rewrites else self.echo(body, self.echoed)
            if self.is_over:
                return
        start, self.start = self.start, None
        assert start is not None
        if changed is not None:
            self.kept.append((b"content-length", b"%d" % len(changed)))
            start, body = dict(start), changed
            start["headers"] = self.kept
        if self.named:
            start = {**start, "headers": [*start["headers"], *self.named]}
        message = dict(message)
        message["body"] = body
        await self.send(start)
        await self.send(message)

    async def _cut_answer(self) -> bytes | None:
        """Return what takes the place of a result whose session has ended meanwhile."""
        assert self.make_guard is not None
        assert self.start is not None
        guard = self.make_guard()
        return guard.cut_body() if self.start["status"] == _OK and await guard.is_over() else None

    async def _stream(self, message: ASGIMessage, events: EventStream) -> None:
        body, more = message.get("body", b""), message.get("more_body", False)
        pieces = []
        if self.is_opaque:
            await self._rewritten(body)
        for event in events.feed(body):
            if event.oversized:
                _log.error(
                    "an event of over %d bytes passed without its session (max_event_bytes)", self.max_event_bytes
                )
            if self.guard is not None and (event_id := event.id) is not None:
                self.guard.streams.remember(self.guard.transport, event_id, self.guard.origin)
            text, changed = event.data, None
            if text is not None:
                changed = await self._rewritten(text) if self.rewrites else self.echo(text, self.echoed)
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
            self.waiting.append(message)
            if more and self._is_held():
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
            await self._send_cut_body()  # it was cut while something was sent

    async def _release(self, start: ASGIMessage) -> None:
        """Send the start of an event stream that was held, and what waits with it."""
        waiting, self.start, self.waiting = self.waiting, None, []
        await self.send({**start, "headers": [*start["headers"], *self.named]})
        for message in waiting:
            await self.send(message)

    def echo(self, text: bytes, session: ActiveSession | None) -> bytes | None:
        """Return the answer with a session, or the error that takes its place where the state cannot be kept."""
        try:
            return None if session is None else rewrite.echo(text, self.request_id, session.echo)
        except StateError as error:
            return rewrite.error(self.request_id, INTERNAL_ERROR, str(error))

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

    async def cut(self) -> None:
        """End the stream: its session has ended. What is being sent goes out before."""
        self.is_over = True
        if not self.is_sending:
            await self._send_cut_body()

    def close(self) -> None:
        """Take the stream off the list: the application has sent everything."""
        if self.guard is not None:
            self.guard.streams.remove(self)

    async def _send_cut_body(self) -> None:
        assert self.guard is not None
        last = self.guard.cut_body()
        # The blank line ends an event that was too large to be held and is half sent; elsewhere it means nothing.
        body = b"\n\ndata: %b\n\n" % last if last else b""
        # Ending a session does not wait for a client that does not read, nor fail for one that has gone.
        with anyio.move_on_after(_PATIENCE), suppress(Exception):
            if self.start is not None:
                await self._release(self.start)
            await self.send({"type": "http.response.body", "body": body, "more_body": False})
