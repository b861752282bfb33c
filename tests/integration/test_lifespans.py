"""Lifespans: what starts and stops with an application, and one lifespan of several."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import pytest
from clients import SECRET, Answer, Incoming, RealClient, call, http, lifespan, started
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route, Router
from starlette.types import Message

from integration.servers import FRAMEWORKS, SDK, Cell, made
from mcp_sessions import ConfigurationError, MCPSessionMiddleware, TransportSessions, add_sessions
from mcp_sessions._server import startup_checks
from mcp_sessions.integrations import lifespan_of
from mcp_sessions.stores import Ended, MemoryStore

from .test_starlette import StreamableHTTPASGIApp


@asynccontextmanager
async def database(app: object) -> AsyncIterator[dict[str, str]]:
    """A lifespan of one's own, which gives the requests something."""
    yield {"database": "open"}


@asynccontextmanager
async def nothing(app: object) -> AsyncIterator[None]:
    yield


async def items(request: Request) -> JSONResponse:
    return JSONResponse(request.state.database)


def with_sessions(mcp: Any) -> Any:
    return add_sessions(mcp, keys=SECRET, transport="off")


def wrapped(mcp: Any) -> Any:
    return MCPSessionMiddleware(mcp, keys=SECRET, transport="off")


@pytest.mark.parametrize("outer", [FastAPI, Starlette])
@pytest.mark.parametrize("place", [with_sessions, wrapped])
async def test_a_mounted_server_lives_with_the_application(place: Callable[[Any], Any], outer: Any) -> None:
    """It starts and stops with it, beside what the application opens itself, and has sessions."""
    mcp = place(made(Cell(SDK)))
    app = outer(lifespan=lifespan_of(database, nothing, mcp))
    app.add_route("/items", items)
    app.mount("/api", mcp)
    async with lifespan(app):
        client = RealClient(app, path="/api/mcp")
        await client.connect()
        assert len({await client.call("whoami", await client.create()) for _ in range(2)} | {"nobody"}) == 3


@pytest.mark.parametrize("place", [with_sessions, wrapped])
async def test_a_lifespan_that_is_not_passed_on_is_named_at_the_first_request(
    place: Callable[[Any], Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The server behind it answers 500, in words of its own that name no remedy."""
    mcp = place(made(Cell(SDK)))
    app = FastAPI()
    app.mount("/api", mcp)
    async with lifespan(app):
        for _ in range(2):
            with pytest.raises(RuntimeError, match="Task group is not initialized"):
                await call(app, http(path="/api/mcp"), b'{"jsonrpc":"2.0","id":1,"method":"ping"}')
    (line,) = [text for text in caplog.messages if text.startswith("no lifespan has reached")]
    assert "FastAPI(lifespan=lifespan_of(mcp_app))" in line


@pytest.mark.parametrize("outer", [FastAPI, Starlette])
async def test_sessions_may_come_later(outer: Any) -> None:
    """What the outer application is given is looked up at its start."""
    mcp = made(Cell(SDK))
    app = outer(lifespan=lifespan_of(mcp))
    app.mount("/api", mcp)
    add_sessions(app, keys=SECRET, transport="off")
    async with lifespan(app):
        client = RealClient(app, path="/api/mcp")
        await client.connect()
        assert await client.call("whoami", await client.create()) != "nobody"


async def test_what_they_yield_is_merged() -> None:
    async with lifespan_of(nothing, Starlette(lifespan=database))(None) as state:
        assert state == {"database": "open"}
    app = Starlette()
    app.add_route("/items", items)
    assert (await call(app, http("GET", "/items", state=state))).json == "open"


async def test_a_server_that_must_not_start_keeps_the_application_from_starting() -> None:
    guarded = made(Cell(SDK), authenticated=True)
    life = lifespan_of(MCPSessionMiddleware(guarded, keys=SECRET))(None)
    with pytest.raises(ConfigurationError, match="add_sessions"):
        await life.__aenter__()


def test_what_has_no_lifespan_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="applications and lifespan functions, not None"):
        lifespan_of(None)


SHELLS: dict[str, Callable[[Route], Any]] = {
    "Starlette": lambda route: Starlette(routes=[route]),
    "FastAPI": lambda route: FastAPI(routes=[route]),
    "a bare router": lambda route: Router([route]),
    "behind a middleware": lambda route: CORSMiddleware(Starlette(routes=[route])),
}


@pytest.mark.parametrize("make", SHELLS.values(), ids=SHELLS)
async def test_random_keys_with_several_workers_refuse_to_start(
    make: Callable[[Route], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The application's own start-up fails, and without one every request does."""
    monkeypatch.setattr(startup_checks, "workers", lambda: 2)
    app = add_sessions(make(Route("/mcp", StreamableHTTPASGIApp())))
    message = await started(app)
    assert message["type"] == "lifespan.startup.failed"
    assert "2 worker processes" in message["message"]
    with pytest.raises(ConfigurationError, match="2 worker processes"):
        await call(app, http())


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("place", [partial(add_sessions, keys=SECRET), partial(MCPSessionMiddleware, keys=SECRET)])
@pytest.mark.parametrize(
    ("stateful", "options"),
    [(True, {}), (False, {}), (True, {"transport": "off"}), (True, {"transport": TransportSessions(bridge=True)})],
)
async def test_the_start_says_that_a_stateful_server_hides_our_sessions(
    framework: str, place: Any, stateful: bool, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async with lifespan(place(made(Cell(framework, stateful=stateful)), **options)):
        pass
    assert ("stateless_http=True" in caplog.text) is (stateful and not options)


class Store(MemoryStore):
    """Notes when it is opened, looked into and closed."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[str] = []
        self.swept = anyio.Event()

    async def open(self) -> None:
        self.steps.append("open")

    async def close(self) -> None:
        self.steps.append("close")

    async def claim_ended(self, *, audience: str, idle_timeout: int | None, lease: float, limit: int) -> list[Ended]:
        self.swept.set()
        return []


@pytest.mark.parametrize("make", SHELLS.values(), ids=SHELLS)
async def test_the_store_lives_as_long_as_the_application(
    make: Callable[[Route], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is open before the first request, what is tracked is swept without one, and at the end the store is closed."""
    store = Store()
    monkeypatch.setattr("mcp_sessions._server.runtime.stores.make", lambda given, **options: store)
    app = add_sessions(make(Route("/mcp", StreamableHTTPASGIApp())), keys=SECRET, tracked=True)
    answer, incoming = Answer(), Incoming({"type": "lifespan.startup"})

    async def receive() -> Message:
        if incoming.messages:
            return await incoming()
        await store.swept.wait()
        assert store.steps == ["open"]
        return {"type": "lifespan.shutdown"}

    with anyio.fail_after(5):
        await app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, receive, answer)
    assert [message["type"] for message in answer.messages] == [
        "lifespan.startup.complete",
        "lifespan.shutdown.complete",
    ]
    assert store.steps == ["open", "close"]


async def test_a_mounted_application_that_is_started_with_the_outer_one_starts_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As an MCP server in FastAPI, whose lifespan is handed on; and once where it is mounted at two places."""
    store = Store()
    monkeypatch.setattr("mcp_sessions._server.runtime.stores.make", lambda given, **options: store)
    inner = add_sessions(Starlette(routes=[Route("/mcp", StreamableHTTPASGIApp())]), keys=SECRET)
    async with FastAPI(lifespan=inner.router.lifespan_context).router.lifespan_context(inner):
        async with inner.router.lifespan_context(inner):
            """The other place."""
        assert "close" not in store.steps
    assert store.steps.count("close") == 1
