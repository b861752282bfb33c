"""A client that speaks Streamable HTTP to an ASGI application in its own event loop.

It sends and receives the bytes of a real client, piece by piece, so a test can act while a response is under way. It
holds sessions as the draft asks: what a result echoes replaces what was held.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, cast

import anyio
from clients import LEGACY, MODERN, SESSION_KEY, chunks, http
from starlette.types import ASGIApp, Message, Scope

ENVELOPE: Final = {"io.modelcontextprotocol/protocolVersion": MODERN, "io.modelcontextprotocol/clientCapabilities": {}}
INITIALIZE: Final = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "wire", "version": "1"}}
_NAMED_BY: Final = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}


@dataclass
class Held:
    """A session as a client holds it, from the answer of `sessions/create`."""

    metadata: dict[str, Any]

    @property
    def id(self) -> str:
        return cast("str", self.metadata["sessionId"])

    def learn(self, echoed: Mapping[str, Any]) -> None:
        assert echoed["sessionId"] == self.id
        self.metadata.update(echoed)

    def sent(self) -> dict[str, Any]:
        return {name: value for name, value in self.metadata.items() if name in {"sessionId", "state"}}


@dataclass
class Reply:
    """One whole HTTP response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def messages(self) -> list[dict[str, Any]]:
        """Every JSON-RPC message in the response, whether JSON or an event stream."""
        streamed = self.headers["content-type"].startswith("text/event-stream")
        return self.events if streamed else [json.loads(self.body)]

    @property
    def events(self) -> list[dict[str, Any]]:
        """Every JSON-RPC message in the rest of an event stream."""
        lines = self.body.decode().splitlines()
        return [json.loads(line[5:]) for line in lines if line.startswith("data:") and line[5:].strip()]

    @property
    def answer(self) -> dict[str, Any]:
        return self.messages[-1]

    @property
    def result(self) -> dict[str, Any]:
        answer = self.answer
        assert "result" in answer, answer
        return cast("dict[str, Any]", answer["result"])

    @property
    def error(self) -> dict[str, Any]:
        return cast("dict[str, Any]", self.answer["error"])

    @property
    def text(self) -> str:
        """The first text in the result of a tool, a resource, a prompt or a completion."""
        result = self.result
        if "content" in result:
            return cast("str", result["content"][0]["text"])
        if "contents" in result:
            return cast("str", result["contents"][0]["text"])
        if "messages" in result:
            return cast("str", result["messages"][0]["content"]["text"])
        return cast("str", result["completion"]["values"][0])


@dataclass
class Exchange:
    """One request under way, whose response arrives here piece by piece."""

    scope: Scope
    body: bytes
    _gone: anyio.Event = field(default_factory=anyio.Event)
    _asked: bool = False

    def __post_init__(self) -> None:
        self._into, self._outof = anyio.create_memory_object_stream[Message](100_000)

    async def run(self, app: ASGIApp) -> None:
        async with self._into:
            await app(self.scope, self._receive, self._into.send)

    async def _receive(self) -> Message:
        if not self._asked:
            self._asked = True
            return chunks(self.body)[0]
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def next_event(self, holding: str = "data: {") -> str:
        """Return the next piece of an event stream that holds data, or `holding`."""
        piece = ""
        while holding not in piece:
            piece = (await self._outof.receive()).get("body", b"").decode()
        return piece

    async def reply(self) -> Reply:
        start, pieces = {}, []
        async for message in self._outof:
            if message["type"] == "http.response.start":
                start = dict(message)
            pieces.append(message.get("body", b""))
        headers = {name.decode().lower(): value.decode() for name, value in start.get("headers", ())}
        return Reply(start.get("status", 0), headers, b"".join(pieces))

    def leave(self) -> None:
        """Close the connection, as a client that leaves does."""
        self._gone.set()
        self._outof.close()


class Client:
    """One client of one ASGI application.

    Args:
        modern: Whether to speak the modern era's protocol.
        headers: Headers of every request, which may override `host`.
        root_path: The prefix of `path` that a proxy keeps.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        modern: bool = False,
        path: str = "/mcp",
        headers: Mapping[str, str] | None = None,
        root_path: str = "",
    ) -> None:
        self.app = app
        self.modern = modern
        self.path = path
        self.root_path = root_path
        self.headers = dict(headers or {})
        self._ids = itertools.count(1)

    async def connect(self) -> Reply:
        """Complete the handshake, or discover the server in the modern era; a transport session id is kept."""
        if self.modern:
            return await self.request("server/discover")
        reply = await self.request("initialize", INITIALIZE)
        if "mcp-session-id" in reply.headers:
            self.headers["mcp-session-id"] = reply.headers["mcp-session-id"]
        await self.notify("notifications/initialized")
        return reply

    async def create(self) -> Held:
        return Held((await self.request("sessions/create")).result["session"])

    async def delete(self, held: Held) -> Reply:
        return await self.request("sessions/delete", held=held)

    async def call(self, tool: str, held: Held | None = None, /, **arguments: Any) -> str:
        return (await self.request("tools/call", {"name": tool, "arguments": arguments}, held)).text

    async def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        held: Held | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        async with self.under_way(method, params, held, headers) as exchange:
            reply = await exchange.reply()
        if held is not None and reply.status == 200 and SESSION_KEY in reply.answer.get("result", {}).get("_meta", {}):
            held.learn(reply.result["_meta"][SESSION_KEY])
        return reply

    async def notify(self, method: str) -> Reply:
        return await self.send("POST", json.dumps({"jsonrpc": "2.0", "method": method}).encode())

    async def send(self, http_method: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Reply:
        async with self._exchange(http_method, body, headers) as exchange:
            return await exchange.reply()

    @asynccontextmanager
    async def under_way(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        held: Held | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[Exchange]:
        """Send a request and act while its response is under way."""
        params = dict(params or {})
        meta = {**(ENVELOPE if self.modern else {}), **params.get("_meta", {})}
        if held is not None:
            meta[SESSION_KEY] = held.sent()
        if meta:
            params["_meta"] = meta
        added = dict(headers or {})
        if self.modern:
            added["mcp-method"] = method
            if method in _NAMED_BY:
                added["mcp-name"] = params[_NAMED_BY[method]]
        body = {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params}
        async with self._exchange("POST", json.dumps(body).encode(), added) as exchange:
            yield exchange

    def resuming(self, last_event_id: str) -> AbstractAsyncContextManager[Exchange]:
        """Resume a broken event stream, and act while it is open."""
        return self._exchange("GET", b"", {"last-event-id": last_event_id})

    @asynccontextmanager
    async def _exchange(
        self, http_method: str, body: bytes, headers: Mapping[str, str] | None
    ) -> AsyncIterator[Exchange]:
        exchange = Exchange(self._scope(http_method, body, headers or {}), body)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(exchange.run, self.app)
            yield exchange
            exchange.leave()

    def _scope(self, http_method: str, body: bytes, headers: Mapping[str, str]) -> Scope:
        everything = {
            "host": "127.0.0.1:8000",
            "accept": "application/json, text/event-stream",
            "content-type": "application/json",
            "content-length": str(len(body)),
            "mcp-protocol-version": MODERN if self.modern else LEGACY,
            **self.headers,
            **headers,
        }
        return http(
            http_method,
            self.path,
            [(name.encode(), value.encode()) for name, value in everything.items()],
            http_version="1.1",
            scheme="http",
            raw_path=self.path.encode(),
            root_path=self.root_path,
            query_string=b"",
            client=("127.0.0.1", 50000),
            server=("127.0.0.1", 8000),
        )


class StartRefused(Exception):
    """The message of an application that does not start."""


@asynccontextmanager
async def lifespan(app: ASGIApp) -> AsyncIterator[None]:
    """Start an application as a server does, and shut it down.

    Raises:
        StartRefused: The application does not start; raised within an exception group.
    """
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
        if heard[0]["type"] == "lifespan.startup.failed":
            raise StartRefused(heard[0]["message"])
        yield
        await into.send({"type": "lifespan.shutdown"})
        await stopped.wait()
    assert heard[1]["type"] == "lifespan.shutdown.complete"
