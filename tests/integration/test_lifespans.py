"""The start of an application: what lives as long as it, one lifespan of several, and what keeps it from starting."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from clients import SECRET, RealClient, call, http, lifespan, started
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route, Router

from mcp_sessions import ConfigurationError, MCPSessionMiddleware, TransportSessions, add_sessions
from mcp_sessions._server import startup_checks
from mcp_sessions.integrations import lifespan_of
from mcp_sessions.stores import MemoryStore

from .servers import FRAMEWORKS, SDK, Cell, http_app, made, server_class, whoami
from .test_starlette import known


@asynccontextmanager
async def database(app: object) -> AsyncIterator[dict[str, str]]:
    """A lifespan of one's own, which gives the requests something."""
    yield {"database": "open"}


@asynccontextmanager
async def nothing(app: object) -> AsyncIterator[None]:
    yield


with_sessions, wrapped = (
    partial(place, keys=SECRET, transport="off") for place in (add_sessions, MCPSessionMiddleware)
)
either_place = pytest.mark.parametrize("place", [with_sessions, wrapped], ids=["add_sessions", "wrapped"])


@pytest.mark.parametrize("outer", [FastAPI, Starlette])
@pytest.mark.parametrize("place", [with_sessions, wrapped, None], ids=["add_sessions", "wrapped", "added later"])
async def test_a_mounted_server_lives_with_the_application(place: Callable[[Any], Any] | None, outer: Any) -> None:
    """It starts and stops with it, beside what the application opens itself, and has sessions."""
    mcp = made(Cell(SDK)) if place is None else place(made(Cell(SDK)))
    app = outer(lifespan=lifespan_of(database, nothing, mcp))
    app.mount("/api", mcp)
    if place is None:
        with_sessions(app)
    async with lifespan(app):
        client = RealClient(app, path="/api/mcp")
        await client.connect()
        assert len({await client.call("whoami", await client.create()) for _ in range(2)} | {"nobody"}) == 3


@either_place
async def test_a_lifespan_that_is_not_passed_on_is_named_at_the_first_request(
    place: Callable[[Any], Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The server behind it answers 500, in words of its own that name no remedy."""
    app = FastAPI()
    app.mount("/api", place(made(Cell(SDK))))
    async with lifespan(app):
        for _ in range(2):
            with pytest.raises(RuntimeError, match="Task group is not initialized"):
                await call(app, http(path="/api/mcp"), b'{"jsonrpc":"2.0","id":1,"method":"ping"}')
    (line,) = [text for text in caplog.messages if text.startswith("no lifespan has reached")]
    assert "FastAPI(lifespan=lifespan_of(mcp_app))" in line


async def test_what_they_yield_is_merged() -> None:
    async with lifespan_of(nothing, Starlette(lifespan=database))(None) as state:
        assert state == {"database": "open"}


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
    app = add_sessions(make(known()))
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
    """Notes when it is opened and closed."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[str] = []

    async def open(self) -> None:
        self.steps.append("open")

    async def close(self) -> None:
        self.steps.append("close")


@pytest.mark.parametrize("make", SHELLS.values(), ids=SHELLS)
async def test_the_store_lives_as_long_as_the_application(
    make: Callable[[Route], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store()
    monkeypatch.setattr("mcp_sessions._server.runtime.stores.make", lambda given, **options: store)
    async with lifespan(add_sessions(make(known()), keys=SECRET)):
        assert store.steps == ["open"]
    assert store.steps == ["open", "close"]


# --- `require=` on resources ---------------------------------------------------------------------


async def count(number: int) -> str:
    return str(number)


def serving_resources(framework: str, *resources: str) -> Any:
    """A server with templates, which coerce a number, and with fixed resources."""
    mcp = server_class(framework)("s")
    for uri in resources:
        mcp.resource(uri)(count if "{" in uri else whoami)
    return http_app(mcp, Cell(framework, json=True))


@pytest.mark.parametrize("place", [add_sessions, MCPSessionMiddleware])
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("require", [{"resources/read": True, "tools/call": ["cart"]}, {"resources/read"}, "always"])
async def test_rules_that_name_no_uri_hold_for_templates_too(require: Any, framework: str, place: Any) -> None:
    """Every spelling needs a session."""
    app = place(serving_resources(framework, "res://cart/{number}"), keys=SECRET, require=require)
    async with lifespan(app):
        for uri in ("res://cart/7", "res://cart/07", "res://cart/+7", "res://cart/7%20"):
            assert (await RealClient(app).send("resources/read", {"uri": uri})).error["code"] == -31044
