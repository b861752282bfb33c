"""The life of a session: made and filled, written back, idle, ended; and what comes to nothing leaves nothing."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from apps import Server, sessions
from clients import START, Answer, Client, Clock
from failing import Failing
from starlette.types import Scope

from mcp_sessions import CreateRefused, Principal, Session
from mcp_sessions._errors import StoreUnavailable
from mcp_sessions._server.options import HOUR
from mcp_sessions._session.claims import AUDIENCE
from mcp_sessions._session.events import RequestRefused
from mcp_sessions._session.session import EndedSession
from mcp_sessions.stores import MemoryStore

Params = dict[str, Any]


def expires_in(answer: Answer) -> float:
    assert answer.session is not None
    return datetime.fromisoformat(answer.session["expiresAt"].replace("Z", "+00:00")).timestamp() - START


def held(answer: Answer) -> dict[str, str]:
    assert answer.session is not None
    return {name: value for name, value in answer.session.items() if name != "expiresAt"}


@pytest.fixture
def clock() -> Clock:
    return Clock()


def idling(clock: Clock, hours: int) -> Client:
    return Client(sessions(Server(), clock=clock, lifetime=10 * HOUR, idle_timeout=hours * HOUR))


class TestIdleness:
    """Where the client carries the state, with when it was last seen."""

    async def test_it_ends_a_session_sooner(self, clock: Clock) -> None:
        """Counted from the last request; nothing of the state is lost when only the time is renewed."""
        client = idling(clock, 1)
        sent = held(await client.tool("remember", session=await client.create(), n=1))
        for _ in range(3):
            clock.now += HOUR - 1
            sent = held(await client.tool(session=sent))
        assert (await client.tool("remember", session=sent)).result["content"] == {"n": 1}
        clock.now += HOUR
        assert (await client.tool(session=sent)).error["data"]["reason"] == "expired"

    async def test_use_never_prolongs_the_absolute_end(self, clock: Clock) -> None:
        client = idling(clock, 6)
        first = await client.tool(session=await client.create())
        clock.now += 5 * HOUR
        assert [expires_in(first), expires_in(await client.tool(session=held(first)))] == [6 * HOUR, 10 * HOUR]

    async def test_a_withheld_or_replayed_state_only_shortens(self, clock: Clock) -> None:
        """A client that sends no state, or its first one again, is idle since its creation."""
        client = idling(clock, 1)
        first = await client.create()
        clock.now += HOUR - 1
        newest = await client.tool(session=first)
        clock.now += 1
        assert expires_in(newest) == 2 * HOUR - 1
        assert (await client.tool(session=held(newest))).session is not None
        for sent in (first, {"sessionId": first["sessionId"]}):
            assert (await client.tool(session=sent)).error["data"]["reason"] == "expired"


@pytest.mark.parametrize("by_header", [False, True])
async def test_the_request_that_ends_it_outlives_it(by_header: bool) -> None:
    """And is a request like any other again where the store did not take the end; what it wrote goes with it."""
    store = Failing("revoke")

    async def leave(session: Session | None, arguments: dict[str, Any]) -> Any:
        assert session is not None
        session.state["n"] = 1
        with pytest.raises(StoreUnavailable):
            await session.end()
        before = session._active.ended_by_own_request  # type: ignore[attr-defined]
        store.failing.clear()
        await session.end()
        return [before, session._active.ended_by_own_request]  # type: ignore[attr-defined]

    client = Client(sessions(Server(leave=leave), store=store), modern=False)
    header = [await client.initialize()] if by_header else []
    session = None if by_header else await client.create()
    assert (await client.tool("leave", *header, session=session)).result["content"] == [False, True]
    assert (await client.tool("leave", *header, session=session)).error["code"] == -32043


async def test_what_cannot_be_recorded_is_not_made() -> None:
    """Nothing that the hook would have made has to be freed, since it did not run."""
    ran, store = list[str](), Failing("register")
    client = Client(
        sessions(Server(), store=store, tracked=True, on_create=lambda session, *_: ran.append(session.ref))
    )
    assert (await client.send("sessions/create")).status == 503
    assert ran == []
    store.failing.clear()
    assert [(await client.tool(session=await client.create())).result["content"]] == ran


class TestOnCreate:
    async def test_it_may_be_any_object_that_is_called_and_awaited(self) -> None:
        """It is told whose session it is, what the caller asked for, and the request that asks."""

        class Hook:
            ran: list[Any]

            async def __call__(self, session: Session, params: Params, scope: Scope) -> None:
                await checkpoint()
                self.ran = [session.ref, session.principal, params, scope["path"]]

        hook = Hook()
        for on_create in (hook, partial(hook)):
            client = Client(sessions(Server(), on_create=on_create, principal=lambda scope: "alice"))
            created = (await client.send("sessions/create", {"plan": "free"})).result["session"]
            ref = (await client.tool(session={"sessionId": created["sessionId"]})).result["content"]
            assert hook.ran == [ref, Principal(subject="alice"), {"plan": "free"}, "/mcp"]

    @pytest.mark.parametrize("tracked", [True, False])
    @pytest.mark.parametrize("error", [CreateRefused("no more"), StoreUnavailable(), LookupError()])
    async def test_what_it_refuses_was_never_there(
        self, tracked: bool, error: Exception, clock: Clock, caplog: pytest.LogCaptureFixture
    ) -> None:
        """No data, no record and no fact is left, and `on_end` has nothing to free. A bug stands in the log."""
        told, refused, store = list[object](), list[Session](), MemoryStore(clock=clock)

        async def on_create(session: Session, params: Params, scope: Scope) -> None:
            await session.data.set("browser", 7)
            refused.append(session)
            raise error

        def on_end(session: EndedSession, reason: str) -> None:
            told.append(reason)

        hooks = {"on_create": on_create, "on_end": on_end, "listen": told.append}
        client = Client(sessions(Server(), clock=clock, store=store, tracked=tracked, **hooks))
        code = -31045 if isinstance(error, CreateRefused) else -32603
        assert (await client.send("sessions/create")).error["code"] == code
        is_bug = isinstance(error, LookupError)
        assert (f"on_create of session {refused[0].ref} raised LookupError" in caplog.text) is is_bug
        assert await refused[0].data.get("browser") is None
        assert await store.get(refused[0].ref) is None
        clock.now += 8 * 24 * HOUR
        assert await store.claim_ended(audience=AUDIENCE, idle_timeout=None, lease=60, limit=10) == []
        assert [fact for fact in told if not isinstance(fact, RequestRefused)] == []

    async def test_a_caller_who_leaves_leaves_nothing_behind(self) -> None:
        """What was kept is forgotten, even though the request is being cancelled."""
        inside, made = anyio.Event(), list[Session]()

        async def on_create(session: Session, params: Params, scope: Scope) -> None:
            await session.data.set("browser", 7)
            made.append(session)
            inside.set()
            await anyio.sleep_forever()

        async with anyio.create_task_group() as group:
            group.start_soon(Client(sessions(Server(), on_create=on_create)).create)
            await inside.wait()
            group.cancel_scope.cancel()
        assert await made[0].data.get("browser") is None
