"""Unchanged clients in their default settings get a session each: by the transport header, the bridge or a cookie."""

import logging
from contextlib import AsyncExitStack
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import pytest
from clients import MODERN, OFFERED, SESSION_KEY, RealClient, lifespan
from environments import needs
from starlette.applications import Starlette
from starlette.types import ASGIApp, Receive, Scope, Send

from client.peers import streams_of
from mcp_sessions import MCPSessionMiddleware
from mcp_sessions._server import logs
from mcp_sessions.client import with_sessions
from mcp_sessions.events import SessionCreated, SessionDeleted, SessionEvent

from .servers import CELLS, COVERING, DEADLINE, FRAMEWORKS, KEYS, STATEFUL, Cell, Hall, ref, running, wrapped
from .serving import peer, serving


@pytest.mark.parametrize("cell", [cell for cell in COVERING if not (cell.modern and cell.stateful)], ids=str)
async def test_two_unchanged_clients_have_two_sessions(cell: Cell) -> None:
    """Over real HTTP, beside those that they create; one of the legacy era ends its session as it leaves."""
    facts: list[SessionEvent] = []
    options: dict[str, Any] = {"bridge": True} if cell.stateful else {"transport": "auto"}
    async with (
        serving(wrapped(cell, Hall(), listen=facts.append, **options)) as url,
        peer(cell, url) as one,
        peer(cell, url) as two,
    ):
        assert cell.modern == (getattr(one.session, "protocol_version", None) == MODERN)
        assert one.capabilities.experimental == {"sessions": {"required": "never", **OFFERED}}
        mine, yours = await one.tool("whoami"), await two.tool("whoami")
        assert [await client.tool("count") for client in (one, two, one)] == ["1", "1", "2"]
        held, other = await one.create(), await one.create()
        assert [await one.tool("count", each) for each in (held, other, None, held)] == ["1", "1", "3", "2"]
        await one.delete(held)
        with pytest.raises(Exception, match="Session not found"):
            await one.tool("count", held)
        assert await one.tool("count", other) == "2"
    created = {fact.ref for fact in facts if isinstance(fact, SessionCreated)}
    deleted = {fact.ref for fact in facts if isinstance(fact, SessionDeleted) and fact.reason == "deleted"}
    assert len(created) == 4
    assert {mine, yours} < created
    assert len(deleted) == (1 if cell.modern else 3)
    assert ({mine, yours} < deleted) is not cell.modern


@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell.modern and not cell.stateful], ids=str)
async def test_a_client_that_prefers_the_modern_era_falls_back(cell: Cell) -> None:
    """With `era="legacy"` it gets a transport session."""
    app = wrapped(Cell(cell.framework, json=cell.json), transport="auto", era="legacy")
    async with serving(app) as url, peer(cell, url) as client:
        assert [await client.tool("count") for _ in range(2)] == ["1", "2"]


@pytest.mark.parametrize("cell", STATEFUL, ids=str)
async def test_the_servers_transport_session_is_untouched(cell: Cell) -> None:
    """A logical session outlives it."""
    async with running(cell) as server:
        client = server.client()
        transport_id = (await client.connect()).headers[b"mcp-session-id"]
        assert b"." not in transport_id
        held = await client.create()
        for session in (held, None):
            reply = await client.tool("whoami", session=session)
            assert reply.headers.get(b"mcp-session-id", transport_id) == transport_id
        assert await client.call("count", held) == "1"
        assert (await client.http("DELETE")).status == 200
        assert (await client.tool("whoami")).status == 404
        assert await (await server.connected()).call("count", held) == "2"


@needs("mcp>=2")
@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_a_cookie_is_good_on_every_worker_until_all_sessions_are_gone(framework: str, tmp_path: Path) -> None:
    """Four workers with one store are replaced in the midst of a conversation; a dead cookie is one error."""
    cell = Cell(framework, modern=True)
    first, second = [
        [wrapped(cell, transport="auto", store=f"sqlite:{tmp_path}/sessions.db") for _ in range(4)] for _ in range(2)
    ]
    others = [wrapped(cell, transport="auto", keys="another secret of the integration tests, of 32 bytes")]
    workers, turns = list[ASGIApp](), count()

    async def balancer(scope: Scope, receive: Receive, send: Send) -> None:
        is_lifespan = scope["type"] == "lifespan"
        await (Starlette() if is_lifespan else workers[next(turns) % len(workers)])(scope, receive, send)

    async with AsyncExitStack() as stack:
        for app in (*first, *second, *others):
            await stack.enter_async_context(lifespan(app))
        workers[:] = first
        client = await stack.enter_async_context(peer(cell, await stack.enter_async_context(serving(balancer))))
        assert [await client.tool("count") for _ in range(5)] == ["1", "2", "3", "4", "5"]
        workers[:] = second
        assert [await client.tool("count") for _ in range(5)] == ["6", "7", "8", "9", "10"]
        workers[:] = others
        with pytest.raises(Exception, match="Session not found"):
            await client.tool("count")
        assert [await client.tool("count") for _ in range(2)] == ["1", "2"]


@needs("mcp>=2")
async def test_two_sessions_of_one_client_with_a_cache_read_their_own() -> None:
    """And without one it reads nothing of them, in any order: its cache knows of no session.

    The client names sessions by itself, or as `with_sessions` has it.
    """
    caching, hints = import_module("mcp.client.caching"), import_module("mcp.server.caching")
    fresh = hints.CacheHint(ttl_ms=3_600_000, scope="public")
    mcp = import_module("mcp.server.mcpserver").MCPServer("cached", cache_hints={"resources/read": fresh})
    served: list[str] = []

    async def me() -> str:
        served.append(ref())
        return ref()

    async def read(client: Any, held: dict[str, str] | None = None) -> str:
        result = await client.read_resource("session://me", meta=None if held is None else {SESSION_KEY: held})
        return str(result.contents[0].text)

    def client_of(to: Any) -> Any:
        config = caching.CacheConfig(default_ttl_ms=60_000)
        return import_module("mcp").Client(to, mode="2026-07-28", cache=config)

    mcp.resource("session://me")(me)
    app = MCPSessionMiddleware(mcp.streamable_http_app(stateless_http=True), keys=KEYS)
    with anyio.fail_after(DEADLINE):
        async with serving(app) as url:
            async with client_of(url) as client:
                wire = RealClient(app, modern=True)
                first, second = await wire.create(), await wire.create()
                mine, yours = await read(client, first), await read(client, second)
                assert [await read(client), await read(client)] == ["nobody", "nobody"]
                assert served == [mine, yours, "nobody"]  # the cache is on: it answered the last read
                found = [await read(client, held) for held in (first, None, second, None)]
                assert found == [mine, "nobody", yours, "nobody"]
            sessions = with_sessions(streams_of(url))
            async with client_of(sessions) as client:
                one, other = sessions.new(), sessions.new()
                texts = []
                for session in (None, one, other, None, other, one):
                    with sessions.use(session):
                        texts.append(await read(client))
    assert texts == ["nobody", texts[1], texts[2], "nobody", texts[2], texts[1]]
    assert len({*found, *texts}) == 5


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("bridge", [False, True])
async def test_ids_of_an_earlier_deployment_are_known_from_the_start(
    framework: str, bridge: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server of the SDK or FastMCP shows that it is stateless, so no worker has to see an `initialize` first."""
    monkeypatch.setattr(logs, "_warned", set())
    caplog.set_level(logging.INFO, "mcp_sessions")
    app = wrapped(Cell(framework), bridge=bridge, transport="auto")
    async with lifespan(app):
        client = RealClient(app, headers={"mcp-session-id": "0123456789abcdef0123456789abcdef"})
        assert await client.call("whoami") == "nobody"
    assert [line for line in caplog.messages if "earlier deployment" in line]
