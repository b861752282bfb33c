"""The bridge: a stateful server whose clients see our transport ids only, and whose own travel sealed inside of them.

`Bridge` stands directly before the wrapped server and translates the header in both directions, on every response.
What a request may pass with was decided before: a `Crossing` on its scope names a live session of ours and the server's
id in it, a `Beginning` lets a successful `initialize` name one. Without either the server hears no id and its client
sees none. Two clients never share a transport session, since each of ours is minted for one of the server's.
Source: MCP 2025-11-25, Streamable HTTP, "Session Management".
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .dialects import upstream
from .errors import Refusal
from .handshake import Handshake
from .head import SESSION_HEADER
from .live import Live

WAY: Final = "mcp_sessions.bridge"
"""Where a request's scope holds how it crosses. The wrapped server does not see it."""

_OF_A_BODY: Final = frozenset({b"content-length", b"content-type", b"transfer-encoding", b"accept-encoding"})
_log: Final = logging.getLogger("mcp_sessions")


class Crossing(msgspec.Struct, frozen=True):
    """A request of a transport session.

    Args:
        ours: The id that its client holds. A credential.
        servers: The id that the wrapped server knows.
    """

    ours: str
    servers: str

    def __repr__(self) -> str:
        return "<Crossing>"


class Beginning(msgspec.Struct):
    """An `initialize`, which may begin a transport session.

    Args:
        request_id: Its id, as JSON.
        mint: Gives our id for the server's, or raises a `Refusal`.
        refuse: Answers the client with a refusal.
        stranded: The server's id that no client holds, since ours was refused.
    """

    request_id: bytes
    mint: Callable[[str], Awaitable[str]]
    refuse: Callable[[Refusal], Awaitable[None]]
    stranded: str | None = None


def has_servers_own(scope: Scope) -> bool:
    """Whether a request comes by a transport session of the wrapped server, in the header or across the bridge."""
    # What of the header is still there is the server's own.
    return SESSION_HEADER in dict(scope["headers"]) or scope.get(WAY) is not None


def crossing(live: Live) -> Crossing | None:
    """How requests of a transport session cross, or None where the server knows nothing of it.

    Raises:
        SessionNotFound: The server's id in it was not sealed for it.
    """
    servers = live.servers_id
    return None if servers is None else Crossing(live.session.id, servers)


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


async def _no_body() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _unheard(_message: Message) -> None:
    """Nobody waits for this answer."""


def _hiding(send: Send) -> Send:
    async def hide(message: Message) -> None:
        await send(_renamed(message, None) if message["type"] == "http.response.start" else message)

    return hide


def _translating(send: Send, way: Crossing) -> Send:
    async def translate(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = _renamed(message, way.ours if _servers_id(message) == way.servers else None)
        await send(message)

    return translate


def _servers_id(start: Message) -> str | None:
    ids = [value.decode("latin-1") for name, value in start.get("headers", ()) if name.lower() == SESSION_HEADER]
    return ids[0] if len(ids) == 1 else None


def _carried(start: Message) -> str:
    """The server's id, or nothing where it names none that can be carried."""
    servers = _servers_id(start) or ""
    if servers and not upstream.can_carry(servers):
        _log.error("the server's transport id is no visible ASCII, or too long: its client cannot get it")
        return ""
    return servers


def _renamed(start: Message, ours: str | None) -> Message:
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

    async def __call__(self, message: Message) -> None:
        if self._is_over:
            return
        if message["type"] == "http.response.start":
            self._servers = _carried(message)
            message = _renamed(message, None)
        await super().__call__(message)

    def _may_name(self, start: Message) -> bool:
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
