"""What the middleware does for itself leaves no spans: the store's driver, and the question to the server."""

from __future__ import annotations

import sqlite3
from contextlib import nullcontext
from pathlib import Path
from time import time
from typing import Any
from uuid import uuid4

import postgres_servers
import psycopg
import pytest
import redis_servers
from apps import Server, sessions
from clients import Client
from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
from opentelemetry.instrumentation.redis import RedisInstrumentor
from opentelemetry.instrumentation.sqlite3 import SQLite3Instrumentor
from opentelemetry.instrumentation.utils import is_instrumentation_enabled
from opentelemetry.sdk.trace import ReadableSpan

from mcp_sessions import SEP1364Create
from mcp_sessions.stores import RedisStore
from mcp_sessions.stores._postgres import PostgresStore
from mcp_sessions.stores._sqlite import SQLiteStore

OURS = {"sessions/create", "sessions/delete", "session start", "session end", "tools/call whoami"}


async def lives(store: Any) -> None:
    """Create, use and delete tracked sessions, with all that runs beside them."""
    app = sessions(Server(), store=store, tracked=True, clock=time)
    client = Client(app)
    async with app.services.around(lambda _: nullcontext(), None):
        held = await client.create()
        await client.tool(session=held)
        await client.delete(held)
    await store.close()


async def test_a_sqlite_store_leaves_no_spans(tmp_path: Path, spans: list[ReadableSpan]) -> None:
    """Though a query of the application's own, beside it, does."""
    SQLite3Instrumentor().instrument()
    try:
        await lives(SQLiteStore(tmp_path / "sessions.db"))
        own = sqlite3.connect(":memory:")
        own.cursor().execute("SELECT 1")
    finally:
        SQLite3Instrumentor().uninstrument()
    assert {span.name for span in spans} == {*OURS, "SELECT"}


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # redis-py runs on it alone
async def test_a_redis_store_leaves_no_spans(spans: list[ReadableSpan]) -> None:
    store = RedisStore(redis_servers.shared().url, prefix=f"{uuid4().hex}:", durability="ignore")
    RedisInstrumentor().instrument()
    try:
        await lives(store)
    finally:
        RedisInstrumentor().uninstrument()
    assert {span.name for span in spans} == OURS


async def test_a_postgresql_store_lets_no_instrumentation_see_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread has a context of its own."""
    url, seen = postgres_servers.shared().url, list[bool]()
    execute = psycopg.Connection.execute

    def observed(*args: Any, **given: Any) -> Any:
        seen.append(is_instrumentation_enabled())
        return execute(*args, **given)

    monkeypatch.setattr(psycopg.Connection, "execute", observed)
    await lives(PostgresStore(url, schema=f"s{uuid4().hex}", durability="ignore", timeout=10))
    assert {*seen} == {False}


@pytest.mark.parametrize("mode", ["auto", "off"])
@pytest.mark.parametrize("modern", [True, False])
async def test_http_instrumentation_within_sees_no_question(mode: str, modern: bool, spans: list[ReadableSpan]) -> None:
    """Not before a creation, a refusal or an end; it comes with a context that is not sampled, not the caller's."""
    inner = Server()
    client = Client(sessions(OpenTelemetryMiddleware(inner), spans=mode, dialects=[SEP1364Create()]), modern=modern)
    traced = (b"traceparent", b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01")
    await client.send("sessions/create", None, traced)
    await client.tool("whoami", traced, session={"sessionId": "x"})
    assert {span.name for span in spans} - {"sessions/create", "session start", "tools/call _OTHER"} == set()
    assert len(inner.seen) == 2
    sent = [dict(seen.scope["headers"]).get(b"traceparent", b"-00") for seen in inner.seen]
    assert all(header != traced[1] and header.endswith(b"-00") for header in sent)
