"""Memory: nothing that a caller sends without a valid session is kept, but in tables that are bounded."""

from __future__ import annotations

import gc
import json
import logging
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import pytest
from apps import Server, sessions
from clients import Client, Header, call, http
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from recorded import process_wide

from mcp_sessions.telemetry import Inspector, SessionMetrics

NAMES = (
    *("mcp-session-id", "last-event-id", "mcp-method", "mcp-name", "mcp-protocol-version", "traceparent", "tracestate"),
    *("baggage", "cookie", "origin", "host", "user-agent", "authorization", "x-forwarded-for", "sec-fetch-site"),
)
METHODS = ("tools/call", "initialize", "server/discover", "sessions/delete", "sessions/list", "resources/read", "ping")
TYPED: Header = (b"content-type", b"application/json")
OPTIONS: dict[str, Any] = {"bridge": True, "tracked": True, "correlate": ["header:x-conversation"]}


@pytest.fixture
def anyio_backend() -> str:
    """Once is enough: the order of events does not matter here."""
    return "asyncio"


@contextmanager
def logged_to_nowhere() -> Iterator[None]:
    """While pytest keeps each record: OpenTelemetry logs the whole of a baggage that it cannot read."""
    root = logging.getLogger()
    handlers, root.handlers = root.handlers, [logging.NullHandler()]
    try:
        yield
    finally:
        root.handlers = handlers


class Hostile:
    """Sends requests without a valid session, each with texts of a kilobyte that no other has."""

    def __init__(self, client: Client, server: Server, session_id: str) -> None:
        self._client, self._server = client, server
        self._forged = session_id[:-6] + "AAAAAA"
        self._random = Random(38)
        self._sent = 0

    async def send(self, count: int) -> None:
        for _ in range(count):
            self._sent += 1
            await call(self._client.app, *self._request(f"{self._sent}-{'x' * 1000}"))
            self._server.seen.clear()

    def _request(self, text: str) -> tuple[Any, bytes]:
        choice = self._random.choice
        headers = [TYPED, *((name.encode(), f"{text}{name}".encode()) for name in self._random.sample(NAMES, 4))]
        headers += [(b"x-conversation", text.encode())]
        if not any(name == b"mcp-protocol-version" for name, _ in headers):
            headers.append((b"mcp-protocol-version", choice([b"2026-07-28", b"2025-11-25"])))
        named = choice([None, {"sessionId": text}, {"sessionId": self._forged, "state": text}])
        params = {"name": choice(["whoami", "remember"]), "uri": text, "arguments": {"x": text}}
        message = self._client.message(choice([*METHODS, text]), params, id=choice([text, 1, None]), session=named)
        info = {"name": choice(["a", text]), "version": text}
        message["params"]["_meta"] |= {"io.modelcontextprotocol/clientInfo": info, "traceparent": text}
        verb = choice(["POST", "POST", "POST", "GET", "DELETE"])
        if message["method"] == "tools/call":
            message["params"]["name"] = "whoami"
        return http(verb, headers=headers, client=(text, 1)), json.dumps(message).encode() if verb == "POST" else b""


async def growth(count: int) -> int:
    """Return the bytes that are kept after so many requests, once what is made at the first ones is there."""
    metrics = SessionMetrics(MeterProvider([InMemoryMetricReader()]))
    app = sessions(server := Server(sse=True), inspector=Inspector(), metrics=metrics, **OPTIONS)
    client = Client(app)
    hostile = Hostile(client, server, (await client.create())["sessionId"])
    with logged_to_nowhere(), process_wide().recording() as spans:
        await hostile.send(200)
        spans.clear()
        gc.collect()
        tracemalloc.start()
        try:
            for _ in range(count // 200):
                await hostile.send(200)
                spans.clear()
            gc.collect()
            return tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()


async def test_requests_without_a_valid_session_leave_nothing() -> None:
    """With spans, metrics and the inspector: 200 requests of 5 kB each leave less than a fifth of that."""
    assert await growth(200) < 200_000


@pytest.mark.nightly
async def test_half_a_million_of_them_leave_nothing() -> None:
    """The tables that are kept fill up, and then stay as they are."""
    assert await growth(500_000) < 20_000_000
