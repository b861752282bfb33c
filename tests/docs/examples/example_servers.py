"""The example servers in this process, and the official SDK's client that talks to them without a network.

To be imported before any module of `examples/`: it makes them importable by their names, as they are for who runs them,
and skips the file that imports it where the SDK is older than the examples need.
"""

from __future__ import annotations

import importlib
import os
import secrets
import sys
from collections.abc import AsyncIterator
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
    """A client of a server that was made for this block alone; what is said besides is said to `client_of`."""
    async with running(name) as app, client_of(app, **about) as client:
        yield client


@asynccontextmanager
async def running(name: str, keys: str | None = None) -> AsyncIterator[ASGIApp]:
    """An example's app, made anew for this block, with keys of its own unless some are given."""
    async with AsyncExitStack() as life:
        # Middleware is made when the application starts, and asks for the keys then.
        with mock.patch.dict(os.environ, MCP_SESSION_KEYS=keys or secrets.token_urlsafe(32)):
            app = with_state(fresh(name))
            await life.enter_async_context(lifespan(app))
        yield app


def fresh(name: str) -> Any:
    """An example's app, made anew."""
    sys.modules.pop(name, None)
    return importlib.import_module(name).app


def with_state(app: ASGIApp) -> ASGIApp:
    """An application whose requests see what its lifespan left, as servers have it."""
    state: dict[str, Any] = {}

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"] = state if scope["type"] == "lifespan" else dict(state)
        await app(scope, receive, send)

    return served


@asynccontextmanager
async def client_of(
    app: ASGIApp, path: str = "/mcp", *, mode: str = "auto", token: str | None = None
) -> AsyncIterator[Client]:
    """A client of a running server, of the modern era where the server serves it, unless `mode` is `legacy`."""
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    async with (
        http_of(app, **headers) as http,
        Client(streamable_http_client(f"http://127.0.0.1:8000{path}", http_client=http), mode=mode) as client,
    ):
        yield client


def http_of(app: ASGIApp, **headers: str) -> httpx2.AsyncClient:
    """A plain HTTP client of a running server."""
    transport = httpx2.ASGITransport(app=app)
    return httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000", headers=headers)
