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
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from environments import require

require("mcp>=2")

import httpx2  # not installed with an older SDK
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))


@asynccontextmanager
async def connected(name: str) -> AsyncIterator[Client]:
    """A client of a server that was made for this block alone."""
    app = fresh(name)
    async with (
        app.app.router.lifespan_context(app.app),
        httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app)) as http,
        Client(streamable_http_client("http://127.0.0.1:8000/mcp", http_client=http)) as client,
    ):
        yield client


def fresh(name: str) -> Any:
    """An example's app, made anew with keys of its own."""
    sys.modules.pop(name, None)
    with mock.patch.dict(os.environ, MCP_SESSION_KEYS=secrets.token_urlsafe(32)):
        return importlib.import_module(name).app
