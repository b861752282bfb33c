"""The shell: what is none of our business passes as the very same objects, and MCP is found wherever it is mounted."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from apps import Server, sessions
from asgiref.typing import ASGIReceiveCallable, ASGISendCallable
from asgiref.typing import Scope as ASGIScope
from clients import SECRET, Answer, Client, Clock, Header, Incoming, call, http
from hypothesis import given
from hypothesis import strategies as st
from starlette._utils import get_route_path
from starlette.testclient import TestClient
from starlette.types import Message, Receive, Scope, Send

from mcp_sessions import ConfigurationError, MCPSessionMiddleware
from mcp_sessions._errors import StoreUnavailable
from mcp_sessions._server.routing import route_path
from mcp_sessions.stores._base import Ended
from mcp_sessions.stores._memory import MemoryStore

JSON: list[Header] = [(b"content-type", b"application/json")]


class TestTheSessionHeader:
    @pytest.mark.parametrize("method", ["GET", "DELETE", "POST"])
    @pytest.mark.parametrize("path", ["/mcp", "/mcp/x"])
    async def test_two_of_them_are_refused(self, method: str, path: str) -> None:
        """Two readers could take different ones."""
        twice: list[Header] = [*JSON, (b"mcp-session-id", b"a"), (b"mcp-session-id", b"a")]
        server = Server()
        answer = await call(sessions(server), http(method, path, twice), b"{}")
        assert (answer.status, answer.error["code"]) == (400, -32600)
        assert not any(b"mcp-session-id" in seen.headers for seen in server.seen)

    @pytest.mark.parametrize("admission", ["ask", "own"])
    @pytest.mark.parametrize("method", ["GET", "DELETE"])
    async def test_one_of_ours_without_a_body_stands_alone(self, method: str, admission: str) -> None:
        """A session of the draft lives in the metadata; a request without one cannot name it by the header."""
        server = Server()
        app = sessions(server, admission=admission)
        token = (await Client(app).create())["sessionId"].encode()
        server.seen.clear()
        answer = await call(app, http(method, headers=[(b"mcp-session-id", token)]))
        assert answer.status == {"GET": 405, "DELETE": 404}[method]  # as a transport session that is over
        asked = [seen.headers for seen in server.seen]
        assert asked == ([{}] if (method, admission) == ("DELETE", "ask") else [])


@given(st.text("/am", max_size=8), st.text("/am", max_size=6))
def test_the_path_is_the_one_that_routing_takes(path: str, root: str) -> None:
    """A router that saw another path than we do would serve what no policy has judged."""
    scope = {"path": path, "root_path": root}
    assert route_path(scope) == get_route_path(scope)


class Store(MemoryStore):
    """A store that says what is asked of it, and may refuse to open and to close."""

    def __init__(self, clock: Clock, *, opening: Exception | None = None) -> None:
        super().__init__(clock=clock)
        self.steps: list[str] = []
        self.swept = anyio.Event()
        self._opening = opening

    async def open(self) -> None:
        self.steps.append("open")
        if self._opening is not None:
            raise self._opening

    async def close(self) -> None:
        self.steps.append("close")
        if self._opening is not None:
            raise self._opening

    async def claim_ended(self, **options: Any) -> list[Ended]:
        self.swept.set()
        return await super().claim_ended(**options)


STEPS = "startup", "shutdown"
STARTED, STOPPED = ({"type": f"lifespan.{step}.complete"} for step in STEPS)


class TestItsOwnStartAndStop:
    async def live(self, app: Any) -> list[Message]:
        """Start an application up and shut it down; what it says."""
        answer = Answer()
        with anyio.fail_after(5):
            await app({"type": "lifespan"}, Incoming(*({"type": f"lifespan.{step}"} for step in STEPS)), answer)
        return answer.messages

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        for step in STEPS:
            await receive()
            await send({"type": f"lifespan.{step}.complete"})

    @pytest.mark.parametrize("ours", [True, False])
    async def test_the_store_is_opened_first_and_closed_last(self, ours: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        """One that was given as an object is closed by who made it."""
        store = Store(Clock())
        monkeypatch.setattr("mcp_sessions._server.runtime.stores.make", lambda given, **options: store)
        app = sessions(self.app, store="memory:" if ours else store)
        assert await self.live(app) == [STARTED, STOPPED]
        assert store.steps == (["open", "close"] if ours else ["open"])

    async def test_a_store_that_is_set_up_wrongly_stops_the_start(self) -> None:
        """The server says what to do, and does not serve."""
        app = sessions(self.app, store=Store(Clock(), opening=ConfigurationError("use appendonly")))
        answer = Answer()
        with pytest.raises(ConfigurationError, match="use appendonly"):
            await app({"type": "lifespan"}, Incoming({"type": "lifespan.startup"}), answer)
        assert answer.messages == [{"type": "lifespan.startup.failed", "message": "use appendonly"}]
        with pytest.raises(ConfigurationError, match="use appendonly"):
            TestClient(app).__enter__()  # which waits for the end of the application

    async def test_a_store_that_is_away_does_not(
        self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What needs no session is served meanwhile; nor does it keep the server from stopping."""
        store = Store(Clock(), opening=StoreUnavailable())
        monkeypatch.setattr("mcp_sessions._server.runtime.stores.make", lambda given, **options: store)
        app = sessions(self.app, store="memory:")
        assert await self.live(app) == [STARTED, STOPPED]
        assert "the session store does not answer yet (store_unavailable)" in caplog.text
        assert "the session store was not closed (store_unavailable)" in caplog.text

    async def test_without_a_lifespan_it_sweeps_from_the_first_request(self) -> None:
        store = Store(Clock())
        app = sessions(Server(), store=store, tracked=True)
        await Client(app).create()
        with anyio.fail_after(5):
            await store.swept.wait()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # the driver of asgiref knows nothing else
class TestUnderAnotherDriver:
    async def test_an_application_with_the_types_of_asgiref_is_wrapped(self) -> None:
        """Type checkers accept it as they do one with Starlette's."""

        async def app(scope: ASGIScope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
            await send({"type": "http.response.start", "status": 204, "headers": [], "trailers": False})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

        assert (await call(MCPSessionMiddleware(app, keys=SECRET), http("GET"))).status == 204
