"""A raw client for tests: plain ASGI calls, and JSON-RPC in both eras over them.

Headers go out in the order given, bodies in the chunks given, and every message that the application sends is kept.
A `RealClient` is for the servers of frameworks: its requests are those of a whole client over HTTP.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import anyio
from starlette.types import ASGIApp, Message, Receive, Scope

SESSION_KEY = "io.modelcontextprotocol/session"
SECRET = "a-secret-for-tests-0123456789-abcdefghijk"
MODERN = "2026-07-28"
LEGACY = "2025-11-25"
ENVELOPE = {"io.modelcontextprotocol/protocolVersion": MODERN, "io.modelcontextprotocol/clientCapabilities": {}}
INITIALIZE = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "client", "version": "1"}}
START = 1_800_000_000
OFFERED = {"fork": True}
"""The extensions in `capabilities.experimental.sessions`, by default."""

DISCOVER = "server/discover"
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
    def whole(self) -> tuple[int, dict[bytes, bytes], bytes]:
        """What a client sees, however it was cut."""
        return self.status, self.headers, self.body

    @property
    def events(self) -> list[Any]:
        """Every JSON-RPC message of an event stream."""
        return [json.loads(line[6:]) for line in self.body.splitlines() if line.startswith(b"data: ") and line[6:]]

    @property
    def json(self) -> Any:
        """The JSON-RPC answer, from a JSON body or from the last event with data."""
        if self.headers.get(b"content-type", b"").startswith(b"text/event-stream"):
            return self.events[-1]
        return json.loads(self.body)

    @property
    def result(self) -> Any:
        return self.json["result"]

    @property
    def error(self) -> Any:
        return self.json["error"]

    @property
    def text(self) -> str:
        """The first text in the result of a tool, a resource, a prompt or a completion."""
        result = self.result
        if "messages" in result:
            return str(result["messages"][0]["content"]["text"])
        if "completion" in result:
            return str(result["completion"]["values"][0])
        return str(result["contents" if "contents" in result else "content"][0]["text"])

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


def credentials(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return what a client sends back of a session's metadata."""
    return {name: metadata[name] for name in ("sessionId", "state") if name in metadata}


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
    with suppress(Exception):  # as servers do, which have been told by then
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
        meta: dict[str, Any] = {**(params or {}).get("_meta", {}), **(ENVELOPE if self.modern else {})}
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

    async def initialize(self) -> Header:
        """Begin as a client does, and return the header that names the transport session."""
        return b"mcp-session-id", (await self.send("initialize")).headers[b"mcp-session-id"]

    async def create(self, *headers: Header) -> dict[str, str]:
        """Create a session, and return its metadata as clients send it back, without the expiry hint."""
        return credentials((await self.send("sessions/create", None, *headers)).result["session"])

    async def fork(self, session: Any) -> dict[str, str]:
        """Fork a session, and return the fork's metadata as `create` does."""
        return credentials((await self.send("sessions/fork", session=session)).result["session"])

    async def delete(self, session: Any, **params: Any) -> Answer:
        """Delete a session."""
        return await self.send("sessions/delete", params, session=session)


class Exchange(Answer):
    """One request under way, whose response arrives here piece by piece."""

    def __init__(self) -> None:
        super().__init__()
        self._left, self._ended, self._arrived = anyio.Event(), anyio.Event(), anyio.Event()
        self._read = 0

    async def run(self, app: ASGIApp, scope: Scope, body: bytes) -> None:
        """Send the request, and hang up when the client leaves."""
        incoming = chunks(body)

        async def receive() -> Message:
            if not incoming:
                await self._left.wait()
            return incoming.pop() if incoming else {"type": "http.disconnect"}

        await app(scope, receive, self)
        self._ended.set()

    async def __call__(self, message: Message) -> None:
        await super().__call__(message)
        self._arrived.set()
        self._arrived = anyio.Event()

    async def next_event(self, holding: str = "data: {") -> str:
        """Return the next piece of an event stream that holds data, or `holding`."""
        while True:
            while self._read == len(self.messages):
                await self._arrived.wait()
            piece: str = self.messages[self._read].get("body", b"").decode()
            self._read += 1
            if holding in piece:
                return piece

    async def ended(self) -> Answer:
        """Wait for the end of the response."""
        await self._ended.wait()
        return self

    def leave(self) -> None:
        self._left.set()


class RealClient(Client):
    """One client of a framework's server, which sends all that those ask for.

    A session that it is given holds what results echo, as the draft asks.

    Args:
        app: The application.
        modern: Whether to speak the modern era's protocol.
        path: The path of the endpoint.
        headers: Headers of every request, which may override `host`.
        scope: Further members of the scope, such as the `root_path` that a proxy keeps.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        modern: bool = False,
        path: str = "/mcp",
        headers: Mapping[str, str] | None = None,
        **scope: Any,
    ) -> None:
        super().__init__(app, modern=modern, path=path, raw_path=path.encode(), **scope)
        self.own = {"host": "127.0.0.1:8000", **(headers or {})}
        self._ids = itertools.count(1)

    def having(self, **headers: str) -> RealClient:
        """Return the same client with further headers, whose names have underscores."""
        other = copy(self)
        other.own = {**self.own, **{name.replace("_", "-"): value for name, value in headers.items()}}
        return other

    async def connect(self, **capabilities: Any) -> Answer:
        """Complete the handshake with these capabilities, or discover the server; a transport session id is kept."""
        if self.modern:
            return await self.send("server/discover")
        answer = await self.send("initialize", {**INITIALIZE, "capabilities": capabilities})
        if b"mcp-session-id" in answer.headers:
            self.own["mcp-session-id"] = answer.headers[b"mcp-session-id"].decode()
        await self.send("notifications/initialized", id=None)
        return answer

    async def post(self, body: object, *headers: Header, method: str = "tools/call") -> Answer:
        async with self._exchange("POST", body, *headers, method=method) as exchange:
            return await exchange.ended()

    async def send(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *headers: Header,
        id: object = 1,
        session: Any = None,
    ) -> Answer:
        """Send one message, a request with an id of its own."""
        if id is None:
            return await self.post(self.message(method, params, id=None, session=session), *headers, method=method)
        async with self.under_way(method, params, *headers, session=session) as exchange:
            answer = await exchange.ended()
        if isinstance(session, dict) and answer.status == 200 and "result" in answer.json and answer.session:
            session |= credentials(answer.session)
        return answer

    async def call(self, name: str, session: Any = None, /, **arguments: Any) -> str:
        """Call a tool, and return its text."""
        return (await self.send("tools/call", {"name": name, "arguments": arguments}, session=session)).text

    async def http(self, http_method: str, body: bytes = b"", **headers: str) -> Answer:
        """Send a request that is not a message of ours."""
        async with self.having(**headers)._exchange(http_method, body) as exchange:
            return await exchange.ended()

    def under_way(
        self, method: str, params: Mapping[str, Any] | None = None, *headers: Header, session: Any = None
    ) -> AbstractAsyncContextManager[Exchange]:
        """Send a request and act while its response is under way."""
        message = self.message(method, params, id=next(self._ids), session=session)
        name = (params or {}).get({"resources/read": "uri"}.get(method, "name"))
        named = [(b"mcp-name", name.encode())] if self.modern and name is not None else []
        return self._exchange("POST", message, *named, *headers, method=method)

    def resuming(self, last_event_id: str) -> AbstractAsyncContextManager[Exchange]:
        """Resume a broken event stream, and act while it is open."""
        return self._exchange("GET", b"", (b"last-event-id", last_event_id.encode()))

    @asynccontextmanager
    async def _exchange(
        self, http_method: str, body: object, *headers: Header, method: str = ""
    ) -> AsyncIterator[Exchange]:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        usual = self.headers(method) if method else Client(self.app, modern=False).headers("")
        own = [(name.encode(), value.encode()) for name, value in self.own.items()]
        everything = dict([*usual, (b"content-length", b"%d" % len(raw)), *own, *headers])
        served: dict[str, Any] = {"http_version": "1.1", "scheme": "http", "root_path": "", "query_string": b""}
        ends = {"client": ("127.0.0.1", 50_000), "server": ("127.0.0.1", 8000)}
        scope = http(http_method, headers=[*everything.items()], **{**served, **ends, **self.scope})
        exchange = Exchange()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(exchange.run, self.app, scope, raw)
            yield exchange
            exchange.leave()


@asynccontextmanager
async def lifespan(app: ASGIApp) -> AsyncIterator[None]:
    """Start an application as a server does, and shut it down."""
    into, outof = anyio.create_memory_object_stream[Message](2)
    heard: list[Message] = []
    started, stopped = anyio.Event(), anyio.Event()

    async def hear(message: Message) -> None:
        heard.append(message)
        (stopped if started.is_set() else started).set()

    async def run() -> None:
        await app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, outof.receive, hear)

    async with into, outof, anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await into.send({"type": "lifespan.startup"})
        await started.wait()
        assert heard[0]["type"] == "lifespan.startup.complete", heard[0]
        yield
        await into.send({"type": "lifespan.shutdown"})
        await stopped.wait()
    assert heard[1]["type"] == "lifespan.shutdown.complete"
