"""The shell: session headers, the path, the application's start and stop, and the `send` that it gets."""

import asyncio
import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from apps import Server, sessions
from asgiref.typing import ASGIReceiveCallable, ASGISendCallable
from asgiref.typing import Scope as ASGIScope
from clients import SECRET, Answer, Client, Header, Incoming, call, http
from hypothesis import given
from hypothesis import strategies as st
from starlette._utils import get_route_path
from starlette.testclient import TestClient
from starlette.types import Message, Receive, Scope, Send

from mcp_sessions import ConfigurationError, MCPSessionMiddleware
from mcp_sessions._errors import StoreUnavailable
from mcp_sessions._server.routing import route_path
from mcp_sessions.stores import MemoryStore


@pytest.mark.parametrize("method", ["GET", "DELETE", "POST"])
@pytest.mark.parametrize("path", ["/mcp", "/mcp/x"])
async def test_two_session_headers_are_refused(method: str, path: str) -> None:
    """Two readers could take different ones."""
    twice: list[Header] = [(b"content-type", b"application/json"), *[(b"mcp-session-id", b"a")] * 2]
    answer = await call(sessions(server := Server()), http(method, path, twice), b"{}")
    assert (answer.status, answer.error["code"]) == (400, -32600)
    assert not any(b"mcp-session-id" in seen.headers for seen in server.seen)


@pytest.mark.parametrize("body", [b"{}", b"[1]"])
async def test_beside_the_endpoint_what_is_no_message_passes(body: bytes) -> None:
    """Unless a header names a session, since nothing says what is done in it."""
    client = Client(sessions(Server(), path=None))
    token = (await client.create())["sessionId"].encode()
    for named, status in ([], 202), ([(b"mcp-session-id", token)], 400):
        headers = [(b"content-type", b"application/json"), *named]
        assert (await call(client.app, http(path="/other", headers=headers), body)).status == status


async def test_a_websocket_passes() -> None:
    """Also to an application with the types of asgiref, which type checkers accept as they do Starlette's."""
    seen: list[str] = []

    async def app(scope: ASGIScope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        seen.append(scope["type"])

    await call(MCPSessionMiddleware(app, keys=SECRET), {"type": "websocket", "path": "/mcp", "headers": []})
    assert seen == ["websocket"]


@given(st.text("/am", max_size=8), st.text("/am", max_size=6))
def test_the_path_is_the_one_that_routing_takes(path: str, root: str) -> None:
    """A router that saw another path than we do would serve what no policy has judged."""
    scope = {"path": path, "root_path": root}
    assert route_path(scope) == get_route_path(scope)


STEPS = "startup", "shutdown"
COMPLETE = tuple(f"lifespan.{step}.complete" for step in STEPS)


class Life(MemoryStore):
    """A store, background work and an application of one server, and what happens to them in order."""

    def __init__(self, *says: str, opening: Exception | None = None) -> None:
        super().__init__()
        self.says = says  # what the application answers to each thing that it hears
        self.steps: list[str] = []
        self._opening = opening

    async def open(self) -> None:
        self.steps.append("the store opens")
        if self._opening is not None:
            raise self._opening

    async def close(self) -> None:
        self.steps.append("the store closes")
        if self._opening is not None:
            raise self._opening

    def start(self) -> None:
        self.steps.append("work begins")

    async def stop(self) -> None:
        self.steps.append("work ends")

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        for said in self.says:
            self.steps.append(f"the application hears {(await receive())['type']}")
            await send({"type": said})

    def wrapped(self, store: str | None = "memory:") -> MCPSessionMiddleware:
        app = sessions(self.app, store=store or self)
        app.services.background_services = [self]
        return app

    async def hear(self, message: Message) -> None:
        self.steps.append(f"the server hears {message['type']}")


class TestItsStartAndStop:
    @pytest.fixture
    def life(self, monkeypatch: pytest.MonkeyPatch) -> Life:
        """One whose store is made by name."""
        life = Life(*COMPLETE)
        monkeypatch.setattr("mcp_sessions._server.runtime.stores.make", lambda given, **options: given and life)
        return life

    async def live(self, life: Life, **options: Any) -> list[str]:
        """Start an application up and shut it down."""
        with anyio.fail_after(5):
            events = ({"type": f"lifespan.{step}"} for step in STEPS)
            await life.wrapped(**options)({"type": "lifespan"}, Incoming(*events), life.hear)
        return life.steps

    @pytest.mark.parametrize("end", ["complete", "failed"])
    async def test_ours_begins_after_the_application_and_ends_before_it(self, life: Life, end: str) -> None:
        """The store opens first and closes last, while the event loop still runs."""
        life.says = "lifespan.startup.complete", f"lifespan.shutdown.{end}"
        assert await self.live(life) == [
            "the store opens",
            "the application hears lifespan.startup",
            "the server hears lifespan.startup.complete",
            "work begins",
            "work ends",
            "the application hears lifespan.shutdown",
            "the store closes",
            f"the server hears lifespan.shutdown.{end}",
        ]

    async def test_an_application_that_does_not_start_starts_nothing(self, life: Life) -> None:
        """One without a lifespan returns at once, which servers take for "not supported", and goes on serving."""
        life.says = ("lifespan.startup.failed",)
        assert [step for step in await self.live(life) if step.startswith("work")] == []
        life.says = ()
        life.steps.clear()
        assert await self.live(life) == ["the store opens"]

    async def test_a_store_that_was_given_as_an_object_is_closed_by_who_made_it(self) -> None:
        assert "the store closes" not in await self.live(Life(*COMPLETE), store=None)

    async def test_a_store_that_is_set_up_wrongly_stops_the_start(self) -> None:
        """The server says what to do, and does not serve."""
        app, answer = Life(*COMPLETE, opening=ConfigurationError("use appendonly")).wrapped(None), Answer()
        with pytest.raises(ConfigurationError, match="use appendonly"):
            await app({"type": "lifespan"}, Incoming({"type": "lifespan.startup"}), answer)
        assert answer.messages == [{"type": "lifespan.startup.failed", "message": "use appendonly"}]
        with pytest.raises(ConfigurationError, match="use appendonly"):
            TestClient(app).__enter__()  # which waits for the end of the application

    async def test_a_store_that_is_away_does_not(self, life: Life, caplog: pytest.LogCaptureFixture) -> None:
        """What needs no session is served meanwhile; nor does it keep the server from stopping."""
        life._opening = StoreUnavailable()
        assert (await self.live(life))[-1] == "the server hears lifespan.shutdown.complete"
        assert "the session store does not answer yet (store_unavailable)" in caplog.text
        assert "the session store was not closed (store_unavailable)" in caplog.text

    async def test_a_router_that_fails_at_its_start_leaves_nothing_open(self, life: Life) -> None:
        with pytest.raises(ZeroDivisionError):
            await life.wrapped().services.around(lambda _: 1 / 0, None).__aenter__()  # type: ignore[arg-type, return-value]
        assert life.steps == ["the store opens", "the store closes"]

    async def test_of_several_lives_of_a_router_the_last_ends_ours(self, life: Life) -> None:
        """As where an application is mounted twice."""

        @asynccontextmanager
        async def own(app: str) -> AsyncIterator[str]:
            life.steps.append("the application starts")
            yield f"state of {app}"
            life.steps.append("the application stops")

        services = life.wrapped().services
        async with services.around(own, "app") as state, services.around(own, "app"):
            life.steps.append("serves")
        assert state == "state of app"
        assert life.steps == [
            *["the store opens", "the application starts", "work begins"] * 2,
            *("serves", "the application stops", "work ends", "the application stops", "the store closes"),
        ]


SUCCESS = b'{"jsonrpc":"2.0","id":1,"result":{}}'
BODIES = {"application/json": SUCCESS, "text/event-stream": b"data: %b\n\n" % SUCCESS, "text/plain": b"hello"}


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # whose `create_task` takes nothing but a coroutine
@pytest.mark.parametrize("kind", BODIES)
async def test_an_application_receives_and_sends_in_tasks(kind: str) -> None:
    """As any ASGI application may, in each kind of response."""

    async def app(scope: Scope, receive: Any, send: Any) -> None:
        assert inspect.iscoroutinefunction(receive)
        assert inspect.iscoroutinefunction(send)
        await asyncio.create_task(receive())
        headers = [(b"content-type", kind.encode())]
        await asyncio.create_task(send({"type": "http.response.start", "status": 200, "headers": headers}))
        await asyncio.create_task(send({"type": "http.response.body", "body": BODIES[kind]}))

    client = Client(sessions(app, admission="own"))
    answer = await client.tool(session=await client.create())
    assert answer.body.startswith(BODIES[kind][:20])
    assert (answer.body != BODIES[kind]) == (kind != "text/plain")
