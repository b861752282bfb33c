"""Small ASGI servers for tests, which answer as MCP servers do and keep the requests that reached them."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields
from typing import Any

from clients import SECRET, Clock
from starlette.types import Receive, Scope, Send

from mcp_sessions import MCPSessionMiddleware, Session, current_session
from mcp_sessions._server.environment import GROUPS
from mcp_sessions._server.lifecycle import Sweeper

RESULTS: dict[str, dict[str, Any]] = {
    "ping": {},
    "initialize": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}},
    "server/discover": {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}},
    "tools/list": {"tools": [], "ttlMs": 60_000, "cacheScope": "public"},
}

Tool = Callable[["Session | None", dict[str, Any]], Awaitable[Any]]


@dataclass
class Seen:
    """One request as it reached the server."""

    scope: Scope
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def headers(self) -> dict[bytes, bytes]:
        """The headers, which must not repeat a name."""
        assert len(dict(self.scope["headers"])) == len(self.scope["headers"])
        return dict(self.scope["headers"])


async def read(receive: Receive) -> bytes:
    """Read a request body, as servers do."""
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    return body


async def reply(
    send: Send, body: bytes, *, status: int = 200, media_type: bytes = b"application/json", named: bytes | None = None
) -> None:
    """Send a response in one piece, which may name a transport session."""
    headers = [(b"content-type", media_type), (b"content-length", b"%d" % len(body))]
    if named is not None:
        headers.append((b"mcp-session-id", named))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def whoami(session: Session | None, arguments: dict[str, Any]) -> Any:
    """Return the session's ref, or "nobody"."""
    return session.ref if session is not None else "nobody"


async def remember(session: Session | None, arguments: dict[str, Any]) -> Any:
    """Write the arguments into the session's state and return all of it."""
    assert session is not None
    session.state.update(arguments)
    return dict(session.state)


async def count(session: Session | None, arguments: dict[str, Any]) -> Any:
    """Count the calls of a session in its state."""
    if session is None:
        return 0
    session.state["n"] = session.state.get("n", 0) + 1
    return session.state["n"]


async def asks(session: Session | None, arguments: dict[str, Any]) -> Any:
    """Ask for the session as code does that gets no arguments, and return whether it is the same."""
    return current_session() is session


async def leave(session: Session | None, arguments: dict[str, Any]) -> Any:
    """End the session."""
    assert session is not None
    await session.end("left")


class Server:
    """An MCP server: tools, lists and the handshake, in JSON or as an event stream.

    Args:
        sse: Whether to answer with events, a notification before each answer.
        guard: Answers a request instead of the server and returns True, as authentication does.
        tools: Further tools by name.
    """

    def __init__(
        self,
        *,
        sse: bool = False,
        guard: Callable[[Scope, Send], Awaitable[bool]] | None = None,
        **tools: Tool,
    ) -> None:
        self.seen: list[Seen] = []
        self._sse = sse
        self._guard = guard
        own: dict[str, Tool] = {"whoami": whoami, "remember": remember, "count": count, "asks": asks, "leave": leave}
        self._tools = {**own, **tools}

    @property
    def methods(self) -> list[str]:
        return [seen.json["method"] for seen in self.seen]

    @property
    def last(self) -> Seen:
        return self.seen[-1]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read(receive)
        self.seen.append(Seen(scope, body))
        if self._guard is not None and await self._guard(scope, send):
            return
        message = json.loads(body or b"{}")
        if not isinstance(message, dict) or "id" not in message or "method" not in message:
            await reply(send, b"", status=202)
            return
        answer = {"jsonrpc": "2.0", "id": message["id"], **await self._answer(scope, message)}
        text = json.dumps(answer).encode()
        if self._sse:
            note = b'event: message\ndata: {"jsonrpc":"2.0","method":"notifications/message"}\n\n'
            await reply(send, note + b"event: message\ndata: " + text + b"\n\n", media_type=b"text/event-stream")
        else:
            await reply(send, text)

    async def _answer(self, scope: Scope, message: dict[str, Any]) -> dict[str, Any]:
        method = message["method"]
        if method == "tools/call":
            params = message["params"]
            result = await self._tools[params["name"]](scope["mcp_session"], params.get("arguments", {}))
            return {"result": {"content": result}}
        if method in RESULTS:
            return {"result": RESULTS[method]}
        return {"error": {"code": -32601, "message": "Method not found"}}


LIMITS = ("body_bytes", "batch", "nesting", "event_bytes", "token_bytes", "state_bytes", "data_bytes", "value_bytes")
SHORT = {
    "transport_lifetime": "transport.lifetime",
    "bridge": "transport.bridge",
    "sweep_interval": "tracked.sweep_interval",
    "create_limit": "limits.creates_per_minute",
    **{f"max_{name}": f"limits.{name}" for name in LIMITS},
    **{name: f"limits.{name}" for name in ("body_timeout", "token_cache", "store_timeout")},
    **{field.name: f"{group}.{field.name}" for group in ("wire", "telemetry") for field in fields(GROUPS[group])},
}
"""Short names for fields of option objects in tests."""


def grouped(**options: Any) -> dict[str, Any]:
    """The middleware's options, with the fields of option objects by their path (`limits.batch`) or short name."""
    paths = {name: SHORT.get(name, name) for name in options}
    flat = {name: value for name, value in options.items() if "." not in paths[name]}
    for group, kind in GROUPS.items():
        given = {name: path.partition(".")[2] for name, path in paths.items() if path.startswith(f"{group}.")}
        off = {"header": False, "cookie": False} if group == "transport" and flat.get(group) == "off" else {}
        made = kind(**off, **{field: options[name] for name, field in given.items()})
        if given and (group != "tracked" or flat.get(group)):
            flat[group] = made
    return flat


def sessions(app: Any, **options: Any) -> MCPSessionMiddleware:
    """Wrap an application in the middleware, with the suite's key and a clock that stands still."""
    return MCPSessionMiddleware(app, **{"keys": SECRET, "clock": Clock(), **grouped(**options)})


def sweeper_of(app: MCPSessionMiddleware) -> Sweeper:
    """Return what ends the recorded sessions of a middleware that expired or were idle."""
    (sweeper,) = [one for one in app._runtime.background_services if isinstance(one, Sweeper)]
    return sweeper
