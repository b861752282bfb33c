"""A server and a client of a few lines each, on either side of the streams, for what real ones do not do on demand.

The messages are the SDK's own, in the form of the SDK that is installed. Runs on any event loop.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from contextvars import Context
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

import anyio
from clients import ENVELOPE, MODERN, SESSION_KEY
from mcp import types
from mcp.shared.message import ClientMessageMetadata, SessionMessage
from pydantic import TypeAdapter

from mcp_sessions.client import ClientSessions, SessionStorage, with_sessions

_MESSAGE: Final[TypeAdapter[Any]] = TypeAdapter(types.JSONRPCMessage)
HEADERS: Final = "headers" in ClientMessageMetadata.__dataclass_fields__
"""Whether the installed SDK lets a message carry HTTP headers."""

LOST: Final = -32043
REQUIRED: Final = -31044
OFFER: Final[dict[str, Any]] = {"capabilities": {"experimental": {"sessions": {"fork": True, "list": True}}}}
Answer = dict[str, Any]
Rule = Callable[[dict[str, Any]], Answer]


def item(message: dict[str, Any], headers: dict[str, str] | None = None) -> SessionMessage:
    """A message as the streams carry it."""
    metadata = ClientMessageMetadata(headers=headers) if headers and HEADERS else None
    return SessionMessage(_MESSAGE.validate_python({"jsonrpc": "2.0", **message}), metadata)


def plain(item: SessionMessage) -> dict[str, Any]:
    dumped: dict[str, Any] = item.message.model_dump(by_alias=True, mode="json", exclude_unset=True)
    return dumped


def error(code: int, **data: Any) -> Answer:
    return {"error": {"code": code, "message": "no", **({"data": data} if data else {})}}


def session_of(message: dict[str, Any]) -> dict[str, str] | None:
    found: dict[str, str] | None = message.get("params", {}).get("_meta", {}).get(SESSION_KEY)
    return found


def echoing(**news: str) -> Rule:
    """A rule that answers with the session of the request, and news of it."""
    return lambda message: {"result": {"_meta": {SESSION_KEY: {**(session_of(message) or {}), **news}}}}


def losing(*lost: str) -> Rule:
    def answer(message: dict[str, Any]) -> Answer:
        named = (session_of(message) or {}).get("sessionId", "")
        return error(LOST, sessionId=named, reason="ended") if named in lost else echoing()(message)

    return answer


@dataclass
class Server:
    """Answers by a table of methods, late where it is to wait until `go` is set; what it was sent is kept."""

    rules: dict[str, Rule] = field(default_factory=dict)
    late: set[str] = field(default_factory=set)
    received: list[SessionMessage] = field(default_factory=list)
    go: anyio.Event = field(default_factory=anyio.Event)
    asked: anyio.Event = field(default_factory=anyio.Event)
    _numbers: Any = field(default_factory=lambda: count(1))
    _streams: Any = None

    @property
    def closed(self) -> bool:
        """Whether both of the transport's streams are closed."""
        answers, requests = (stream.statistics() for stream in self._streams)
        return not (answers.open_receive_streams or requests.open_send_streams)

    def sent(self, method: str) -> list[dict[str, Any]]:
        return [message for message in map(plain, self.received) if message.get("method") == method]

    def carried(self, method: str) -> list[str | None]:
        """The session ids in the requests of a method."""
        return [(session_of(message) or {}).get("sessionId") for message in self.sent(method)]

    def answer(self, message: dict[str, Any]) -> Answer:
        method = message["method"]
        if method in self.rules:
            return self.rules[method](message)
        if method in {"initialize", "server/discover"}:
            return {"result": OFFER}
        if method == "sessions/create":
            return {"result": {"session": {"sessionId": f"id-{next(self._numbers)}"}}}
        if method == "sessions/fork":
            fork = {"sessionId": f"fork-{len(self.sent(method))}"}
            return {"result": {"session": fork, **echoing(state="moved on")(message)["result"]}}
        return {"result": {"_meta": {SESSION_KEY: session_of(message), "other": 1}}}

    @asynccontextmanager
    async def transport(self) -> AsyncIterator[tuple[Any, Any]]:
        answers, read = anyio.create_memory_object_stream[Any](0)
        write, requests = anyio.create_memory_object_stream[SessionMessage](0)
        self._streams = (answers, requests)
        async with anyio.create_task_group() as tasks, answers, requests:
            tasks.start_soon(self._serve, requests, answers)
            yield read, write
            tasks.cancel_scope.cancel()

    async def _serve(self, requests: Any, answers: Any) -> None:
        async with anyio.create_task_group() as tasks:
            with suppress(anyio.ClosedResourceError):
                async for request in requests:
                    self.received.append(request)
                    message = plain(request)
                    if "id" in message and "method" in message:
                        tasks.start_soon(self._reply, message, answers)

    async def _reply(self, message: dict[str, Any], answers: Any) -> None:
        if message["method"] in self.late:
            self.asked.set()
            await self.go.wait()
        await answers.send(item({"id": message["id"], **self.answer(message)}))

    async def push(self, something: Any) -> None:
        await self._streams[0].send(something)

    def hang_up(self) -> None:
        for stream in self._streams:
            stream.close()


@dataclass
class Caller:
    """A client: asks, and tells what it was answered."""

    write: Any
    modern: bool
    answers: dict[Any, dict[str, Any]] = field(default_factory=dict)
    others: list[Any] = field(default_factory=list)
    contexts: list[Context | None] = field(default_factory=list)
    _arrived: dict[Any, anyio.Event] = field(default_factory=dict)
    _ids: Any = field(default_factory=lambda: count(1))

    async def read(self, stream: Any) -> None:
        async with stream:
            async for something in stream:
                self.contexts.append(stream.last_context)
                message = {} if isinstance(something, Exception) else plain(something)
                if message.get("id") in self._arrived:
                    self.answers[message["id"]] = message
                    self._arrived[message["id"]].set()
                else:
                    self.others.append(message or something)
        for event in self._arrived.values():
            event.set()

    async def ask(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """Ask, and wait for the answer; empty where the connection ended."""
        number = next(self._ids)
        self._arrived[number] = anyio.Event()
        meta = {**(ENVELOPE if self.modern else {}), **(params or {}).get("_meta", {})}
        headers = {"mcp-protocol-version": MODERN, "mcp-method": method} if self.modern else None
        body = {**(params or {}), **({"_meta": meta} if meta else {})}
        await self.write.send(item({"id": number, "method": method, **({"params": body} if body else {})}, headers))
        await self._arrived[number].wait()
        return self.answers.get(number, {})

    async def tell(self, method: str, **params: Any) -> None:
        await self.write.send(item({"method": method, "params": params}))


URL: Final = "https://host.example/mcp"


def storing(server: Server, storage: SessionStorage, url: str = URL, **options: Any) -> ClientSessions:
    """Sessions that are stored as those of a URL, whose server is the scripted one."""
    sessions = with_sessions(url, storage, **options)
    sessions._new_transport = server.transport
    return sessions


@asynccontextmanager
async def calling(sessions: ClientSessions, *, modern: bool = True, greet: bool = True) -> AsyncIterator[Caller]:
    with anyio.fail_after(30):
        async with sessions as (read, write), anyio.create_task_group() as tasks:
            async with write:
                caller = Caller(write, modern)
                tasks.start_soon(caller.read, read)
                if greet:
                    await caller.ask(
                        "server/discover" if modern else "initialize", {} if modern else {"capabilities": {}}
                    )
                yield caller
            tasks.cancel_scope.cancel()


@asynccontextmanager
async def talk(
    server: Server, *, modern: bool = True, greet: bool = True, **options: Any
) -> AsyncIterator[tuple[ClientSessions, Caller]]:
    """Sessions on a scripted server, and a client that is connected to it by them."""
    sessions = with_sessions(server.transport, **options)
    async with calling(sessions, modern=modern, greet=greet) as caller:
        yield sessions, caller
