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
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from environments import require

require("mcp>=2")

import httpx2  # not installed with an older SDK
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
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


def printed_by(name: str) -> str:
    """Run an example that must end well, and return its output with single spaces; no id may be in it."""
    command = [sys.executable, str(EXAMPLES / f"{name}.py")]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert not re.search(r"eyJ|\x1b", done.stdout)
    return re.sub(r" +", " ", done.stdout)


def assert_in_order(text: str, steps: Sequence[str]) -> None:
    """Check that all steps stand in a text, in order."""
    places = [text.find(step) for step in steps]
    assert -1 not in places
    assert places == sorted(places)
