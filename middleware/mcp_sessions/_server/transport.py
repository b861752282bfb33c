"""Requests without a body that name a session of ours in the header: a GET, which would open a stream, and DELETE.

A stateless server keeps a GET open for as long as the client lives and never writes to it, so the
client is told that there is none, which it does not mind; a server behind the bridge is asked for its
own. DELETE ends the transport session on every worker, and the one that is sealed inside of it.
Source: MCP 2025-11-25, Streamable HTTP, "Session Management" and "Listening for Messages from the Server".

Event streams that a client opens by GET: taken up again (`Last-Event-ID`), or to listen to a bridged server.

Servers with an event store replay what the client missed, the result of its request included. What
belonged to a session that has ended since must not come out that way. Only streams that passed this
process are known; the servers that replay keep their connections in one process, too.
Source: MCP 2025-11-25, Streamable HTTP, "Resumability and Redelivery".

The bridge: a stateful server whose clients see our transport ids only, and whose own travel sealed inside of them.

`Bridge` stands directly before the wrapped server and translates the header in both directions, on every response.
What a request may pass with was decided before: a `Crossing` on its scope names a live session of ours and the server's
id in it, a `Beginning` lets a successful `initialize` name one. Without either the server hears no id and its client
sees none. Two clients never share a transport session, since each of ours is minted for one of the server's.
Source: MCP 2025-11-25, Streamable HTTP, "Session Management".
"""

from __future__ import annotations

import logging
from typing import Final

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.types import Message as ASGIMessage

from .._protocol import rewrite
from .._protocol.draft import SessionMetadata
from .._protocol.headers import SESSION_HEADER, RequestHeaders
from .._session.claims import FIELD, TRANSPORT
from .._session.events import RequestRefused
from .._tokens import seal
from ..errors import Refusal, SessionEnded, SessionExpired, SessionNotFound, StoreUnavailable
from ..stores.base import Standing
from .answers import Answers
from .context import WAY, Beginning, Crossing, crossing
from .response import Handshake, Responder, Watched, refuse
from .runtime import Runtime
from .sessions import ActiveSession, refusal_of
from .streams import Origin

_METHOD_NOT_ALLOWED: Final = 405


class Bodyless(msgspec.Struct, frozen=True):
    """One such request.

    Args:
        app: The wrapped application.
        options: What all requests share.
        head: The request's head.
        header: The `Mcp-Session-Id` header, which looks like one of ours.
        scope: The ASGI scope.
        receive: The server's `receive`.
        send: The server's `send`.
    """

    app: ASGIApp
    options: Runtime
    head: RequestHeaders
    header: str
    scope: Scope
    receive: Receive
    send: Send

    async def run(self) -> None:
        """Answer it."""
        answers = Answers(self.app, self.options, self.head, self.scope, self.receive, self.send)
        if self._would_listen_in_a_field_session():
            await answers.tell(_METHOD_NOT_ALLOWED, (b"allow", b"POST"))
            return
        try:
            self.options.role(self.header, None)
            live = await self._open()
        except SessionNotFound as refusal:
            await answers.refuse_bodyless(SessionNotFound(refusal.reason, ref=refusal.ref, http_status=404))
        except Refusal as refusal:
            await answers.refuse_bodyless(refusal)
        else:
            await self._serve(answers, live)

    def _would_listen_in_a_field_session(self) -> bool:
        """Whether the header mirrors a session of SEP-1364's, which is deleted by a message, as that has the field."""
        if self.options.opted is None or self.scope["method"] == "DELETE":
            return False
        ring = self.options.ring(self.options.clock())
        return self.options.tokens.kind(ring, self.header) == FIELD

    async def _serve(self, answers: Answers, live: ActiveSession | None) -> None:
        way = self.scope.get(WAY)
        if live is not None and self.scope["method"] == "DELETE":
            await answers.hang_up(live)
        elif live is not None and isinstance(way, Crossing):
            await self._listen(live, way)
        else:
            await answers.tell(_METHOD_NOT_ALLOWED, (b"allow", b"POST, DELETE"))

    async def _open(self) -> ActiveSession | None:
        """The transport session, which must live, with the way to the server's own; None where nothing needs it."""
        if not (self.scope["method"] == "DELETE" or (self.scope["method"] == "GET" and self.options.bridges)):
            return None
        named, principal = SessionMetadata(self.header, None), self.options.principal(self.scope)
        live = await ActiveSession.open(named, self.options, principal=principal, kind=TRANSPORT)
        if self.options.bridges:
            self.scope[WAY] = crossing(live)
        return live

    async def _listen(self, live: ActiveSession, way: Crossing) -> None:
        """Give the client the stream that it asks for: one of the server's, new or taken up again."""
        self.scope["headers"] = [(name, value) for name, value in self.scope["headers"] if name != SESSION_HEADER]
        known = self.options.streams.origin_of(way.servers, self.head.first(LAST_EVENT_ID))
        origin = known or Origin(live.claims, None, "GET")
        await Resumption(self.app, self.options, origin, way.servers, self.scope, self.receive, self.send).run()


LAST_EVENT_ID: Final = b"last-event-id"
_GONE: Final = 404  # what a server answers for a stream that it does not have


class Resumption(msgspec.Struct, frozen=True):
    """A GET that resumes or opens a stream of a session.

    Args:
        app: The wrapped application.
        options: What all requests share.
        origin: The request whose answer the stream carries.
        transport: The wrapped server's transport session, or None.
        scope: The ASGI scope.
        receive: The server's `receive`.
        send: The server's `send`.
    """

    app: ASGIApp
    options: Runtime
    origin: Origin
    transport: str | None
    scope: Scope
    receive: Receive
    send: Send

    async def run(self) -> None:
        """Serve it while the session lives."""
        try:
            await self._check()
        except StoreUnavailable as refusal:
            await self._refuse(refusal, refusal.http_status)
        except SessionNotFound as refusal:
            await self._refuse(refusal, _GONE)
        else:
            await self._serve()

    async def _check(self) -> None:
        claims = self.origin.claims
        standing = await self.options.status(claims)
        if standing is not Standing.LIVE:
            raise refusal_of(standing, claims)
        if not self.options.clock() < claims.expires_at:
            raise SessionExpired(ref=claims.ref)

    async def _serve(self) -> None:
        responder = Responder(self.send, _as_it_is, self._watched, max_event_bytes=self.options.max_event_bytes)
        try:
            await self.app(self.scope, self.receive, responder)
        finally:
            responder.leave()

    def _watched(self) -> Watched:
        return Watched(self.origin, self.transport, self.options.streams, self._told, is_spared=lambda: False)

    def _told(self) -> bytes:
        if self.origin.id is None:
            return b""
        refusal = SessionEnded(ref=self.origin.claims.ref)
        return rewrite.error(self.origin.id, self._emit(refusal), refusal.client_message)

    async def _refuse(self, refusal: Refusal, status: int) -> None:
        await refuse(self.send, refusal, status=status, code=self._emit(refusal))

    def _emit(self, refusal: Refusal) -> int:
        code = self.options.code(refusal)
        self.options.emit(RequestRefused(refusal.reason, code, self.origin.label, self.origin.claims.ref))
        return code


def _as_it_is(_message: bytes) -> None:
    return None


_OF_A_BODY: Final = frozenset({b"content-length", b"content-type", b"transfer-encoding", b"accept-encoding"})
_log: Final = logging.getLogger("mcp_sessions")


class Bridge:
    """The wrapped server, as it is seen from where ids of ours are verified.

    Args:
        app: The wrapped application.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        way = scope.get(WAY)
        inner = {name: value for name, value in scope.items() if name != WAY}
        if isinstance(way, Beginning):
            try:
                await self._app(inner, receive, _Naming(send, way))
            finally:
                inner["mcp_session"] = None  # as the middleware does with its own scope, of which this is a copy
            if way.stranded is not None:
                await self._hang_up(inner, way.stranded)
        elif isinstance(way, Crossing):
            inner["headers"] = [*scope["headers"], (SESSION_HEADER, way.servers.encode("ascii"))]
            await self._app(inner, receive, _translating(send, way))
        else:
            await self._app(inner, receive, _hiding(send))

    async def _hang_up(self, scope: Scope, servers_id: str) -> None:
        """End a transport session of the server that no client will ever use."""
        kept = [(name, value) for name, value in scope["headers"] if name not in _OF_A_BODY]
        named = (SESSION_HEADER, servers_id.encode("ascii"))
        await self._app({**scope, "method": "DELETE", "headers": [*kept, named]}, _no_body, _unheard)


async def _no_body() -> ASGIMessage:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _unheard(_message: ASGIMessage) -> None:
    """Nobody waits for this answer."""


def _hiding(send: Send) -> Send:
    async def hide(message: ASGIMessage) -> None:
        await send(_renamed(message, None) if message["type"] == "http.response.start" else message)

    return hide


def _translating(send: Send, way: Crossing) -> Send:
    async def translate(message: ASGIMessage) -> None:
        if message["type"] == "http.response.start":
            message = _renamed(message, way.ours if _servers_id(message) == way.servers else None)
        await send(message)

    return translate


def _servers_id(start: ASGIMessage) -> str | None:
    ids = [value.decode("latin-1") for name, value in start.get("headers", ()) if name.lower() == SESSION_HEADER]
    return ids[0] if len(ids) == 1 else None


def _carried(start: ASGIMessage) -> str:
    """The server's id, or nothing where it names none that can be carried."""
    servers = _servers_id(start) or ""
    if servers and not seal.can_carry(servers):
        _log.error("the server's transport id is no visible ASCII, or too long: its client cannot get it")
        return ""
    return servers


def _renamed(start: ASGIMessage, ours: str | None) -> ASGIMessage:
    """The head of a response with our id, or none, where it may have had the server's."""
    kept = [(name, value) for name, value in start.get("headers", ()) if name.lower() != SESSION_HEADER]
    return {**start, "headers": kept if ours is None else [*kept, (SESSION_HEADER, ours.encode("ascii"))]}


class _Naming(Handshake):
    """A `send` that gives the client our id for the server's, once `initialize` has succeeded."""

    __slots__ = ("_beginning", "_is_over", "_servers")

    def __init__(self, send: Send, beginning: Beginning) -> None:
        super().__init__(send, beginning.request_id, self._mint_for_server)
        self._beginning = beginning
        self._servers = ""
        self._is_over = False

    async def __call__(self, message: ASGIMessage) -> None:
        if self._is_over:
            return
        if message["type"] == "http.response.start":
            self._servers = _carried(message)
            message = _renamed(message, None)
        await super().__call__(message)

    def _may_name(self, start: ASGIMessage) -> bool:
        return self._servers != "" and super()._may_name(start)

    async def _mint_for_server(self) -> str | None:
        try:
            return await self._beginning.mint(self._servers)
        except Refusal as refusal:
            self._beginning.stranded = self._servers
            self._is_over = True
            await self._beginning.refuse(refusal)
            return None

    async def _name(self, session_id: str | None) -> None:
        if self._is_over:
            self._held = None
        else:
            await super()._name(session_id)
