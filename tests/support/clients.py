"""A raw client for tests: plain ASGI calls, and JSON-RPC in both eras over them.

Headers go out in the order given, bodies in the chunks given, and every message that the application sends is kept.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import anyio
from starlette.types import ASGIApp, Message, Receive, Scope

from mcp_sessions import ConfigurationError

SESSION_KEY = "io.modelcontextprotocol/session"
SECRET = "a-secret-for-tests-0123456789-abcdefghijk"
MODERN = "2026-07-28"
LEGACY = "2025-11-25"
START = 1_800_000_000
OFFERED = {"fork": True}
"""The extensions in `capabilities.experimental.sessions`, by default."""

DISCOVER = "server/discover"
HANDSHAKE = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "old", "version": "1"}}
DEADLINE = 30  # seconds after which a test that hangs fails

Header = tuple[bytes, bytes]


def by(name: str) -> Header:
    """Return the header by which a caller says who it is."""
    return b"x-user", name.encode()


def user_of(scope: Scope) -> str | None:
    """Return who a caller says it is, as `principal=`."""
    return dict(scope["headers"]).get(b"x-user", b"").decode() or None


class Clock:
    """A clock that a test moves."""

    def __init__(self, now: float = START) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Incoming:
    """A `receive` that returns its messages and then waits for ever, as a quiet connection does."""

    def __init__(self, *messages: Message) -> None:
        self.messages = list(messages)

    async def __call__(self) -> Message:
        if not self.messages:
            await anyio.sleep_forever()
        return self.messages.pop(0)


@dataclass
class Answer:
    """Everything that the application sent for one request."""

    messages: list[Message] = field(default_factory=list)

    async def __call__(self, message: Message) -> None:
        self.messages.append(message)

    @property
    def start(self) -> Message:
        return next(message for message in self.messages if message["type"] == "http.response.start")

    @property
    def status(self) -> int:
        status: int = self.start["status"]
        return status

    @property
    def headers(self) -> dict[bytes, bytes]:
        """Response headers, which must not repeat a name."""
        pairs = list(self.start["headers"])
        headers = dict(pairs)
        assert len(headers) == len(pairs)
        return headers

    @property
    def body(self) -> bytes:
        """The whole response body, whose declared length must be right."""
        body = b"".join(message.get("body", b"") for message in self.messages)
        assert self.headers.get(b"content-length", b"%d" % len(body)) == b"%d" % len(body)
        return body

    @property
    def json(self) -> Any:
        """The JSON-RPC answer, from a JSON body or from the last event with data."""
        body = self.body
        if self.headers.get(b"content-type", b"").startswith(b"text/event-stream"):
            body = [line for line in body.splitlines() if line.startswith(b"data: ")][-1].removeprefix(b"data: ")
        return json.loads(body)

    @property
    def result(self) -> Any:
        return self.json["result"]

    @property
    def error(self) -> Any:
        return self.json["error"]

    @property
    def cookie(self) -> Header:
        """The `Cookie` header with which a client goes on after an answer that sets one cookie."""
        (header,) = [value for name, value in self.start["headers"] if name == b"set-cookie"]
        return b"cookie", header.partition(b";")[0]

    @property
    def session(self) -> dict[str, str] | None:
        """The session that was written into the result, or None."""
        found: dict[str, str] | None = self.result.get("_meta", {}).get(SESSION_KEY)
        return found


def chunks(*bodies: bytes) -> list[Message]:
    """Return a request body as ASGI messages, one for each chunk."""
    last = len(bodies) - 1
    return [{"type": "http.request", "body": body, "more_body": place < last} for place, body in enumerate(bodies)]


def http(
    method: str = "POST",
    path: str = "/mcp",
    headers: Sequence[Header] = ((b"content-type", b"application/json"),),
    **more: Any,
) -> Scope:
    return {"type": "http", "method": method, "path": path, "headers": list(headers), "extensions": {}, **more}


async def call(app: ASGIApp, scope: Scope, receive: Receive | bytes = b"") -> Answer:
    """Call an application once and return what it sends."""
    answer = Answer()
    await app(scope, Incoming(*chunks(receive)) if isinstance(receive, bytes) else receive, answer)
    return answer


async def started(app: ASGIApp) -> Message:
    """Return what an application answers to the server's start-up event; if it starts, it stops again."""
    answer, incoming = Answer(), Incoming({"type": "lifespan.startup"}, {"type": "lifespan.shutdown"})
    with suppress(ConfigurationError):  # which is raised when the server was told
        await app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, incoming, answer)
    return answer.messages[0]


class Client:
    """One MCP client of one application; `scope` holds further members of each request's scope."""

    def __init__(self, app: ASGIApp, *, modern: bool = True, **scope: Any) -> None:
        self.app = app
        self.modern = modern
        self.scope = scope

    def message(
        self, method: str, params: Mapping[str, Any] | None = None, *, id: object = 1, session: Any = None
    ) -> dict[str, Any]:
        """Return a JSON-RPC message with the era's envelope; `session` is its metadata, `id=None` a notification."""
        meta: dict[str, Any] = dict((params or {}).get("_meta", {}))
        if self.modern:
            meta["io.modelcontextprotocol/protocolVersion"] = MODERN
            meta["io.modelcontextprotocol/clientCapabilities"] = {}
        if session is not None:
            meta[SESSION_KEY] = session
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": {**(params or {}), "_meta": meta}}
        return message if id is None else {**message, "id": id}

    def headers(self, method: str) -> list[Header]:
        """Return the headers of the era's clients."""
        plain = [(b"content-type", b"application/json"), (b"accept", b"application/json, text/event-stream")]
        if self.modern:
            return [*plain, (b"mcp-protocol-version", MODERN.encode()), (b"mcp-method", method.encode())]
        return [*plain, (b"mcp-protocol-version", LEGACY.encode())]

    async def post(self, body: object, *headers: Header, method: str = "tools/call") -> Answer:
        """POST a body: bytes as they are, other values as JSON."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await call(self.app, http(headers=[*self.headers(method), *headers], **self.scope), raw)

    async def send(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *headers: Header,
        id: object = 1,
        session: Any = None,
    ) -> Answer:
        """Send one message."""
        return await self.post(self.message(method, params, id=id, session=session), *headers, method=method)

    async def tool(self, name: str = "whoami", *headers: Header, session: Any = None, **arguments: Any) -> Answer:
        """Call a tool."""
        params = {"name": name, "arguments": arguments}
        return await self.send("tools/call", params, *headers, session=session)

    async def connect(self) -> Header:
        """Shake hands, and return the header that names the transport session."""
        return b"mcp-session-id", (await self.send("initialize")).headers[b"mcp-session-id"]

    async def create(self, *headers: Header) -> dict[str, str]:
        """Create a session, and return its metadata as clients send it back, without the expiry hint."""
        answer = await self.send("sessions/create", None, *headers)
        session: dict[str, str] = {**answer.result["session"]}
        del session["expiresAt"]
        return session

    async def fork(self, session: Any) -> dict[str, str]:
        """Fork a session, and return the fork's metadata as `create` does."""
        answer = await self.send("sessions/fork", session=session)
        fork: dict[str, str] = {**answer.result["session"]}
        del fork["expiresAt"]
        return fork

    async def delete(self, session: Any, **params: Any) -> Answer:
        """Delete a session."""
        return await self.send("sessions/delete", params, session=session)
