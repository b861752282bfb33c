"""Today's clients in their default settings: each is in a session of its own, by a cookie that it knows nothing of."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from clients import SESSION_KEY, RealClient
from environments import require
from starlette.applications import Starlette
from starlette.types import Receive, Scope, Send

from client.peers import Log, streams_of
from mcp_sessions import MCPSessionMiddleware, add_sessions, current_session

from .servers import DEADLINE, KEYS, ref
from .serving import serving

require("mcp>=2")

from mcp import Client
from mcp.client.caching import CacheConfig
from mcp.client.streamable_http import streamable_http_client
from mcp.server.caching import CacheHint
from mcp.server.mcpserver import MCPServer

from mcp_sessions.client import with_sessions

Count = Callable[[], Awaitable[Any]]


def worker(**options: Any) -> Starlette:
    """One worker of a server with a tool that counts its calls by session."""
    mcp = MCPServer("counter")

    @mcp.tool()
    async def count() -> int:
        session = current_session()
        if session is None:
            return 0
        session.state["n"] = session.state.get("n", 0) + 1
        return int(session.state["n"])

    app = mcp.streamable_http_app(stateless_http=True)
    add_sessions(app, **{"keys": KEYS, **options})
    return app


class Fleet:
    """Workers behind a balancer that gives each request to the next of them."""

    def __init__(self, workers: int, **options: Any) -> None:
        self.workers = [worker(**options) for _ in range(workers)]
        self.turns = itertools.count()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.workers[next(self.turns) % len(self.workers)](scope, receive, send)

    @asynccontextmanager
    async def started(self) -> AsyncIterator[None]:
        """Run the lifespans of all workers within the block."""
        async with AsyncExitStack() as stack:
            for app in self.workers:
                await stack.enter_async_context(app.router.lifespan_context(app))
            yield


@asynccontextmanager
async def served(fleets: list[Fleet]) -> AsyncIterator[str]:
    """Serve the first of these fleets within the block; who takes it out lets the next one serve."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await fleets[0](scope, receive, send)
        else:
            await quiet(scope, receive, send)

    quiet = Starlette()
    async with AsyncExitStack() as stack:
        for fleet in fleets:
            await stack.enter_async_context(fleet.started())
        yield await stack.enter_async_context(serving(app))


@asynccontextmanager
async def counting(package: str, url: str) -> AsyncIterator[Count]:
    """Connect a package's client, and yield what calls the tool."""
    async with import_module(package).Client(url) as client:

        async def count() -> Any:
            return (await client.call_tool("count", {})).structured_content["result"]

        yield count


CLIENTS = pytest.mark.parametrize(
    "client", [partial(counting, "mcp"), partial(counting, "fastmcp")], ids=["sdk", "fastmcp"]
)


@CLIENTS
async def test_a_default_client_is_in_a_session(client: Any) -> None:
    """1, 2, 3 within one client, and another client begins with 1."""
    async with served([Fleet(1)]) as url, client(url) as first, client(url) as second:
        assert [await first() for _ in range(3)] == [1, 2, 3]
        assert [await second() for _ in range(2)] == [1, 2]
        assert await first() == 4


@CLIENTS
async def test_a_session_is_on_every_worker_and_outlives_them(client: Any, tmp_path: Path) -> None:
    """Four workers with one store, all replaced in the midst of a conversation."""
    store = f"sqlite:{tmp_path / 'sessions.db'}"
    fleets = [Fleet(4, store=store), Fleet(4, store=store)]
    async with served(fleets) as url, client(url) as count:
        assert [await count() for _ in range(5)] == [1, 2, 3, 4, 5]
        del fleets[0]
        assert [await count() for _ in range(5)] == [6, 7, 8, 9, 10]


@CLIENTS
async def test_a_dead_cookie_is_one_error(client: Any) -> None:
    """Where all sessions are gone, one call fails, and the next one is in a new session."""
    fleets = [Fleet(1), Fleet(1, keys="another secret of the integration tests, of 32 bytes")]
    async with served(fleets) as url, client(url) as count:
        assert await count() == 1
        del fleets[0]
        with pytest.raises(Exception, match="Session not found"):
            await count()
        assert [await count(), await count()] == [1, 2]


async def test_two_clients_on_one_http_client_never_share_a_session(caplog: pytest.LogCaptureFixture) -> None:
    """They share a cookie jar, so from the second on neither has a session, and the log says what to do."""
    import httpx2

    async with served([Fleet(1)]) as url, httpx2.AsyncClient() as http, AsyncExitStack() as stack:
        first = await stack.enter_async_context(Client(streamable_http_client(url, http_client=http)))
        assert (await first.call_tool("count", {})).structured_content == {"result": 1}
        second = await stack.enter_async_context(Client(streamable_http_client(url, http_client=http)))
        for client in (second, first):
            assert (await client.call_tool("count", {})).structured_content == {"result": 0}
    assert "two MCP clients share one cookie jar" in caplog.text


# --- the response cache of the SDK's client, which knows nothing of sessions ---------------------------


FRESH: Final = CacheHint(ttl_ms=3_600_000, scope="public")


def cached(served: list[str]) -> Any:
    """Wrap a server whose resource answers with its session's ref and may be cached for an hour."""
    mcp = MCPServer("cached", cache_hints={"resources/read": FRESH, "tools/list": FRESH})

    @mcp.resource("session://me")
    async def me() -> str:
        served.append(ref())
        return ref()

    return MCPSessionMiddleware(mcp.streamable_http_app(stateless_http=True), keys=KEYS)


async def test_two_sessions_of_one_cached_client_read_their_own() -> None:
    """With the cache on, each session and a reader without one get their own answer, in any order."""
    served: list[str] = []
    app = cached(served)
    with anyio.fail_after(DEADLINE):
        async with serving(app) as url, Client(url, mode="2026-07-28", cache=CacheConfig()) as client:
            wire = RealClient(app, modern=True)
            first, second = await wire.create(), await wire.create()

            async def read(held: dict[str, str] | None) -> str:
                meta: Any = None if held is None else {SESSION_KEY: held}
                result: Any = await client.read_resource("session://me", meta=meta)
                return str(result.contents[0].text)

            mine, yours = await read(first), await read(second)
            assert [await read(None), await read(None)] == ["nobody", "nobody"]
            assert served == [mine, yours, "nobody"]  # the cache is on: it answered the last read
            assert [await read(held) for held in (first, None, second, None)] == [mine, "nobody", yours, "nobody"]
    assert len({mine, yours, "nobody"}) == 3


async def test_each_session_reads_its_own_and_a_call_without_one_reads_nothing_of_them() -> None:
    """In any order of reading: the client knows of no session, so its cache could not keep them apart."""
    log = Log(cached([]))
    with anyio.fail_after(DEADLINE):
        async with serving(log) as url:
            sessions = with_sessions(streams_of(url))
            async with Client(sessions, mode="2026-07-28", cache=CacheConfig(default_ttl_ms=60_000)) as client:

                async def read(session: Any) -> str:
                    with sessions.use(session):
                        result: Any = await client.read_resource("session://me")
                        await client.list_tools()
                    return str(result.contents[0].text)

                first, second = sessions.new(), sessions.new()
                texts = [await read(session) for session in (None, first, second, None, second, first)]
    assert texts == ["nobody", texts[1], texts[2], "nobody", texts[2], texts[1]]
    assert len(set(texts)) == 3
    assert len(log.sent("tools/list")) == len(texts)
