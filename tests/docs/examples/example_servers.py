"""The example servers in this process, with the official SDK's client and without a network.

Import it before any module of `examples/`: it makes them importable by name, and skips the importing file where the
SDK is older than the examples need.
"""

from __future__ import annotations

import importlib
import os
import re
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast
from unittest import mock

import anyio
from clients import SESSION_KEY
from environments import require

require("mcp>=2")

import httpx2  # not installed with an older SDK
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import EmptyResult, Request, RequestParams, RequestParamsMeta, Result, TextContent
from starlette.types import ASGIApp, Receive, Scope, Send

from integration.wire import lifespan

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
sys.path.insert(0, str(EXAMPLES))


@asynccontextmanager
async def connected(name: str, **about: Any) -> AsyncIterator[Client]:
    """Connect a client to a new server within the block; `about` goes to `client_of`."""
    async with running(name) as app, client_of(app, **about) as client:
        yield client


@asynccontextmanager
async def running(name: str, keys: str | None = None) -> AsyncIterator[ASGIApp]:
    """Run a new app of an example within the block, with new keys unless some are given."""
    async with AsyncExitStack() as life:
        # Middleware is made when the application starts, and reads the keys then.
        with mock.patch.dict(os.environ, MCP_SESSIONS_KEYS=keys or secrets.token_urlsafe(32)):
            app = with_state(fresh(name))
            await life.enter_async_context(lifespan(app))
        yield app


def fresh(name: str) -> Any:
    """Import an example again and return its app."""
    sys.modules.pop(name, None)
    return importlib.import_module(name).app


def with_state(app: ASGIApp) -> ASGIApp:
    """Pass the state of the lifespan on to requests, as servers do."""
    state: dict[str, Any] = {}

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"] = state if scope["type"] == "lifespan" else dict(state)
        await app(scope, receive, send)

    return served


@asynccontextmanager
async def client_of(
    app: ASGIApp, path: str = "/mcp", *, mode: str = "auto", token: str | None = None
) -> AsyncIterator[Client]:
    """Connect a client of the modern era, where the server serves it, unless `mode` is `legacy`."""
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    async with (
        http_of(app, **headers) as http,
        Client(streamable_http_client(f"http://127.0.0.1:8000{path}", http_client=http), mode=mode) as client,
    ):
        yield client


def http_of(app: ASGIApp, **headers: str) -> httpx2.AsyncClient:
    """Make a plain HTTP client of a running server."""
    transport = httpx2.ASGITransport(app=app)
    return httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000", headers=headers)


async def call_without_session(http: httpx2.AsyncClient, tool: str, **arguments: Any) -> str:
    """Call a tool as a client of the handshake versions that names no session, and return the answer's text."""
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
    accept = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2025-11-25"}
    return (await http.post("/mcp", json=call, headers=accept)).text


class ToolFailed(Exception):
    """The tool ran and failed; the message is the tool's own."""


class Created(Result):
    """The result of `sessions/create`."""

    session: dict[str, Any]


class HeldSession:
    """A session by the draft, held with the official SDK's client."""

    def __init__(self, client: Client, metadata: dict[str, Any]) -> None:
        self._client = client
        self.metadata = metadata

    @classmethod
    async def create(cls, client: Client) -> HeldSession:
        """Ask the server for a new session."""
        return cls(client, (await client.session.send_request(_request("sessions/create"), Created)).session)

    @property
    def meta(self) -> RequestParamsMeta:
        """The `_meta` of a request in this session."""
        carried = {name: self.metadata[name] for name in ("sessionId", "state") if name in self.metadata}
        return cast("RequestParamsMeta", {SESSION_KEY: carried})

    async def call(self, tool: str, **arguments: Any) -> Any:
        """Call a tool in this session, and return its value."""
        result = await self._client.call_tool(tool, arguments, meta=self.meta)
        self.metadata |= (result.meta or {})[SESSION_KEY]
        if result.is_error:
            raise ToolFailed(" ".join(part.text for part in result.content if isinstance(part, TextContent)))
        content = result.structured_content or {}
        return content["result"] if content.keys() == {"result"} else content  # objects come as they are

    async def delete(self) -> None:
        await self._client.session.send_request(_request("sessions/delete", self.meta), EmptyResult)


def _request(method: str, meta: RequestParamsMeta | None = None) -> Request[RequestParams, str]:
    return Request[RequestParams, str](method=method, params=RequestParams(_meta=meta))


async def together(calls: Sequence[Awaitable[Any]]) -> list[Any]:
    """Return the results of calls that run at the same time, and the message of one that fails."""
    results: list[Any] = [None] * len(calls)

    async def run(place: int) -> None:
        try:
            results[place] = await calls[place]
        except ToolFailed as failure:
            results[place] = str(failure)

    async with anyio.create_task_group() as group:
        for place in range(len(calls)):
            group.start_soon(run, place)
    return results


def printed_by(name: str) -> str:
    """Run an example that must end well, and return its output with single spaces; no id may be in it."""
    command = [sys.executable, str(EXAMPLES / f"{name}.py")]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert not re.search(r"eyJ|\x1b", done.stdout)
    return re.sub(r" +", " ", done.stdout)
