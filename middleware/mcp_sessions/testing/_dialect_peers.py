"""The two ends of a conversation in the contract of dialects: a client that sends requests, and an MCP server."""

from __future__ import annotations

import json
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .._server.current import current_session
from .._session.claims import Principal

MODERN: Final = "2026-07-28"
LEGACY: Final = "2025-11-25"
USER: Final = b"x-test-user"
_ENVELOPE: Final[Mapping[str, Any]] = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
}
Header = tuple[bytes, bytes]


def user_of(scope: Scope) -> Principal | None:
    """Return who sent a request, as `principal=`."""
    user = dict(scope["headers"]).get(USER)
    return None if user is None else Principal(subject=user.decode())


@dataclass
class Call:
    """One request of a client: `carry` of a dialect adds what identifies the session.

    Attributes:
        method: The method of the JSON-RPC message.
        params: Its params, with `_meta` among them.
        members: Further members of the message, beside `params`.
        headers: Further headers of the request.
        query: The query string.
        http_method: The method of the HTTP request. Only a POST has a message.
    """

    method: str = "tools/call"
    params: dict[str, Any] = field(default_factory=dict)
    members: dict[str, Any] = field(default_factory=dict)
    headers: list[Header] = field(default_factory=list)
    query: bytes = b""
    http_method: str = "POST"

    @property
    def meta(self) -> dict[str, Any]:
        """`params._meta`."""
        found: dict[str, Any] = self.params.setdefault("_meta", {})
        return found


@dataclass
class Answer:
    """What the client gets for one request."""

    status: int
    headers: Sequence[Header]
    body: bytes

    def header(self, name: bytes) -> str | None:
        """Return the value of a header, or None."""
        return next((value.decode("latin-1") for key, value in self.headers if key == name), None)

    @property
    def json(self) -> Any:
        """The JSON-RPC answer."""
        return json.loads(self.body)

    @property
    def result(self) -> Any:
        """The result of a request that succeeded."""
        return self.json["result"]

    @property
    def error_code(self) -> int | None:
        """The code of the error, or None if the request succeeded or has no message."""
        code: int | None = self.json.get("error", {}).get("code") if self.body else None
        return code


class Client:
    """A client of one worker.

    Args:
        app: The worker: an application that has sessions.
        modern: Whether it speaks the modern era's protocol.
        user: Who it is authenticated as, or None for an anonymous caller.
    """

    def __init__(self, app: ASGIApp, *, modern: bool, user: str | None) -> None:
        self.app = app
        self.modern = modern
        self.user = user

    async def send(self, call: Call) -> Answer:
        """Send one request, and return its whole answer."""
        sent: list[MutableMapping[str, Any]] = []
        incoming = [{"type": "http.request", "body": self._body(call)}]

        async def receive() -> Message:
            return incoming.pop() if incoming else {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            sent.append(message)

        scope = {"type": "http", "path": "/mcp", "query_string": call.query, "extensions": {}}
        await self.app({**scope, "method": call.http_method, "headers": self._headers(call)}, receive, send)
        start, *parts = sent
        return Answer(start["status"], list(start["headers"]), b"".join(part.get("body", b"") for part in parts))

    async def request(self, method: str, /, **params: Any) -> Answer:
        """Send a request outside of any session."""
        return await self.send(Call(method, params))

    def _body(self, call: Call) -> bytes:
        if call.http_method != "POST":
            return b""
        meta = {**call.meta, **(_ENVELOPE if self.modern else {})}
        message = {"jsonrpc": "2.0", "id": 1, "method": call.method, "params": {**call.params, "_meta": meta}}
        return json.dumps({**message, **call.members}).encode()

    def _headers(self, call: Call) -> list[Header]:
        version = MODERN if self.modern else LEGACY
        usual = [(b"content-type", b"application/json"), (b"accept", b"application/json, text/event-stream")]
        era = [(b"mcp-protocol-version", version.encode()), *([(b"mcp-method", call.method.encode())] * self.modern)]
        user = [] if self.user is None else [(USER, self.user.encode())]
        return [*usual, *era, *user, *call.headers]


class Server:
    """An MCP server, whose tools use the session, and which keeps the requests that reach it.

    Args:
        transport_id: The id of its transport session, which it names in the answer to `initialize`; None if it has
            none.
    """

    def __init__(self, transport_id: str | None = None) -> None:
        self.seen: list[tuple[Scope, bytes]] = []
        self._transport_id = transport_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = (await receive()).get("body", b"")
        self.seen.append((scope, body))
        message = json.loads(body or b"{}")
        answer = {"jsonrpc": "2.0", "id": message.get("id"), "result": await self._result(message)}
        headers = [(b"content-type", b"application/json")]
        if message.get("method") == "initialize" and self._transport_id is not None:
            headers.append((b"mcp-session-id", self._transport_id.encode()))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(answer).encode()})

    async def _result(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Return the result of a call of `whoami`, `tally` or `leave`, or that of a handshake."""
        if message.get("method") != "tools/call":
            return {"protocolVersion": LEGACY, "supportedVersions": [MODERN], "capabilities": {"tools": {}}}
        session, tool = current_session(), message["params"]["name"]
        if session is None:
            return {"ref": None}
        if tool == "tally":
            session.state["n"] = session.state.get("n", 0) + 1
            return {"ref": session.ref, "n": [session.state["n"], await session.data.increment("n")]}
        if tool == "leave":
            await session.end("left")
        return {"ref": session.ref}
