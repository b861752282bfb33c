"""The way of a request, counted: which functions of the package it enters, in which files, and how often it returns.

A reader follows the same way, so what is counted is what has to be read. A test that fails prints it.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import leaks
import pytest
from clients import LEGACY, SECRET, SESSION_KEY, Answer, Header, Incoming, http
from starlette.types import Message, Receive, Scope, Send

from mcp_sessions import MCPSessionMiddleware

PACKAGE = "/mcp_sessions/"
STAND_INS = "/_native/__init__.py"  # for the native reader; where that runs, none of them is entered
JSON: list[Header] = [(b"content-type", b"application/json")]
TOOL = {"name": "t", "arguments": {}}
HANDSHAKE = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """A server that answers everything with as little as it takes."""
    called = json.loads((await receive())["body"])
    results = {"ping": b"{}", "initialize": b'{"protocolVersion":"2025-11-25","capabilities":{}}'}
    result = results.get(called["method"], b'{"content":[]}')
    body = b'{"jsonrpc":"2.0","id":%d,"result":%b}' % (called["id"], result)
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": 200, "headers": [*JSON, length]})
    await send({"type": "http.response.body", "body": body})


def is_of_the_tests(frame: FrameType | None) -> bool:  # pragma: no cover  # called by a profiler, which is not traced
    """Whether a function is entered by what listens for leaks in this process."""
    while frame is not None:
        if frame.f_code.co_filename == leaks.__file__ and frame.f_code.co_name != "wrapped":
            return True
        frame = frame.f_back
    return False


@dataclass
class Way:
    """What one request entered, in order: files and functions, and the wrapped application in between."""

    entered: list[tuple[str, str]] = field(default_factory=list)

    def __call__(self, frame: FrameType, event: str, _: object) -> None:  # pragma: no cover  # as above
        """Note a function that begins."""
        file, function = frame.f_code.co_filename, frame.f_code.co_name
        if event == "call" and PACKAGE in file and STAND_INS not in file and not is_of_the_tests(frame.f_back):
            self.entered.append((file.rpartition(PACKAGE)[2], function))
        elif event == "call" and frame.f_code is app.__code__:
            self.entered.append(("the application", function))

    @property
    def functions(self) -> int:
        return len([file for file, _ in self.entered if file.endswith(".py")])

    @property
    def files(self) -> set[str]:
        return {file for file, _ in self.entered if file.endswith(".py")}

    @property
    def returns(self) -> int:
        """How often it comes back to a file that it has left."""
        left, found, last = set[str](), 0, ""
        for file, _ in self.entered:
            found += file != last and file in left
            left.add(file)
            last = file
        return found

    def __str__(self) -> str:  # pragma: no cover  # what a failure prints
        listed = "\n".join(f"  {file}: {function}" for file, function in self.entered)
        return f"{self.functions} functions in {len(self.files)} files, {self.returns} returns\n{listed}"


@dataclass
class Client:
    """Requests to one middleware in its usual form."""

    middleware: MCPSessionMiddleware = field(default_factory=lambda: MCPSessionMiddleware(app, keys=SECRET))
    carried: str = ""

    async def send(self, method: str, params: dict[str, Any], observe: Callable[..., None] | None = None) -> Answer:
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}, separators=(",", ":"))
        headers = [*JSON, (b"content-length", b"%d" % len(body))]
        arriving: Message = {"type": "http.request", "body": body.encode(), "more_body": False}
        answer = Answer()
        gc.disable()  # what it finalizes belongs to others
        sys.setprofile(observe)
        try:
            await self.middleware(http(headers=headers, state={}), Incoming(arriving), answer)
        finally:
            sys.setprofile(None)
            gc.enable()
        return answer

    async def way(self, method: str, params: dict[str, Any]) -> Way:
        way = Way()
        await self.send(method, params, way)
        return way

    async def session(self) -> dict[str, Any]:
        created = (await self.send("sessions/create", {})).result["session"]
        return {**TOOL, "_meta": {SESSION_KEY: {"sessionId": created["sessionId"]}}}


def measured(visit: Callable[[Client], Any]) -> Way:
    """The second of two equal requests, on asyncio, with nothing around."""

    async def run() -> Way:
        client = Client()
        await visit(client)
        way: Way = await visit(client)
        return way

    with pytest.MonkeyPatch.context() as patch:
        for module in ("opentelemetry.trace", "trio"):  # as in a server that has neither
            patch.delitem(sys.modules, module, raising=False)
        return asyncio.run(run())


def test_a_tool_call_in_a_session() -> None:
    """From the first byte to the last, and mostly in one direction."""

    async def visit(client: Client) -> Way:
        params = await client.session()
        await client.send("tools/call", params)
        return await client.way("tools/call", params)

    way = measured(visit)
    assert way.functions <= 20, str(way)
    assert len(way.files) <= 14, str(way)
    assert way.returns <= 2, str(way)


def test_a_tool_call_without_a_session() -> None:
    way = measured(lambda client: client.way("tools/call", TOOL))
    assert way.functions <= 12, str(way)
    assert way.returns <= 3, str(way)


@pytest.mark.parametrize(
    ("method", "params", "most"),
    [("sessions/create", {}, 57), ("initialize", HANDSHAKE, 65), ("tools/call", {"name": "t", "forged": True}, 48)],
    ids=["sessions/create", "initialize", "a refusal"],
)
def test_what_is_answered_or_begun_here(method: str, params: dict[str, Any], most: int) -> None:
    """The server's own guards are asked on the way, and tokens are made or refused."""

    async def visit(client: Client) -> Way:
        given = dict(params)
        if given.pop("forged", False):
            client.carried = client.carried or (await client.session())["_meta"][SESSION_KEY]["sessionId"]
            given["_meta"] = {SESSION_KEY: {"sessionId": client.carried[:-6] + "AAAAAA"}}
        return await client.way(method, given)

    way = measured(visit)
    assert way.functions <= most, str(way)
