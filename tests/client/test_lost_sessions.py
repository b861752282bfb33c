"""A session that the server has lost, or asks for: what the program sees, and when a request is sent again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import anyio
import pytest

from mcp_sessions.client import SessionNotFound, with_sessions

from .scripted import LOST, REQUIRED, Answer, Server, calling, echoing, error, losing, plain, session_of, talk


async def test_a_lost_session_is_an_error_once_and_without_its_id() -> None:
    server = Server({"tools/call": losing("id-1")})
    async with talk(server) as (_, caller):
        assert (await caller.ask("tools/call"))["error"] == {"code": LOST, "message": "no", "data": {"reason": "ended"}}
        assert "result" in await caller.ask("tools/call")
    assert server.carried("tools/call") == [{"sessionId": "id-1"}, {"sessionId": "id-2"}]
    assert server.carried("sessions/delete") == [{"sessionId": "id-2"}]


async def test_a_lost_session_without_a_name_is_done() -> None:
    server = Server({"tools/call": losing("id-1")})
    async with talk(server) as (sessions, caller):
        with sessions.use(sessions.new()) as held:
            assert "error" in await caller.ask("tools/call")
            assert held is not None
            assert held.ended
            with pytest.raises(SessionNotFound, match="create another"):
                await caller.ask("tools/call")
        assert "result" in await caller.ask("tools/call")


async def test_recreating_sends_the_request_again_once() -> None:
    server = Server({"tools/call": losing("id-1", "id-2", "id-3")})
    async with talk(server, on_not_found="recreate") as (sessions, caller):
        with sessions.use(sessions.new()):
            assert (await caller.ask("tools/call", {"name": "pay"}))["error"]["code"] == LOST
            assert "result" in await caller.ask("tools/call")
    assert [message["id"] for message in server.sent("tools/call")] == [2, 2, 3, 3]
    assert server.sent("tools/call")[1]["params"]["name"] == "pay"


@pytest.mark.parametrize(
    "answer", [error(LOST), error(LOST, sessionId="another"), error(LOST, other=1), error(-32000, sessionId="id-1")]
)
async def test_an_error_about_something_else_is_left_alone(answer: Answer) -> None:
    """A server that is a client of others may pass their errors on: only one about our session is one of ours."""
    server = Server({"tools/call": lambda _: answer})
    async with talk(server, on_not_found="recreate") as (_, caller):
        for _ in range(2):
            assert (await caller.ask("tools/call"))["error"] == answer["error"]
    assert server.carried("tools/call") == [{"sessionId": "id-1"}] * 2


async def test_requests_that_lost_the_same_session_share_the_next() -> None:
    """An error that comes after the new session was made does not end that one; nor does a late result change it."""
    server = Server({"slow": losing("id-1"), "tools/call": losing("id-1")}, late=frozenset({"slow"}))
    async with talk(server, on_not_found="recreate") as (sessions, caller):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(caller.ask, "slow")
            await server.asked.wait()
            await caller.ask("tools/call")
            server.go.set()
        assert server.carried("slow") == [{"sessionId": "id-1"}, {"sessionId": "id-2"}]
        server.rules["slow"] = echoing(state="late")
        server.go, server.asked = anyio.Event(), anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(caller.ask, "slow")
            await server.asked.wait()
            held = sessions.open("")
            await sessions.delete(held)
            server.go.set()
        assert not held.created
    assert len(server.sent("sessions/create")) == 2


async def test_a_session_that_is_required_is_created() -> None:
    """Once: an error that comes again reaches the program, and so does one for a call that chose to have none."""
    server = Server(
        {
            "initialize": lambda _: {"result": {}},
            "tools/call": lambda message: echoing()(message) if session_of(message) else error(REQUIRED),
            "never": lambda _: error(REQUIRED),
        }
    )
    async with talk(server, modern=False) as (sessions, caller):
        with sessions.use(None):
            assert (await caller.ask("tools/call"))["error"]["code"] == REQUIRED
        offered = sessions.offered
        assert "result" in await caller.ask("tools/call")
        assert (offered, sessions.offered) == (False, True)
        assert (await caller.ask("never"))["error"]["code"] == REQUIRED
    assert server.carried("tools/call") == [None, None, {"sessionId": "id-1"}]


async def test_the_first_answer_stands_where_trying_again_fails() -> None:
    server = Server({"tools/call": losing("id-1")})
    async with talk(server, on_not_found="recreate") as (_, caller):
        server.rules["sessions/create"] = lambda message: (
            error(-32000) if server.sent("tools/call") else {"result": {"session": {"sessionId": "id-1"}}}
        )
        assert (await caller.ask("tools/call"))["error"]["code"] == LOST


async def test_a_request_that_was_given_up_is_not_sent_again() -> None:
    """The program gave up while the session was made anew, or before: its answer goes nowhere."""
    server = Server({"tools/call": losing("id-1")})
    async with talk(server, on_not_found="recreate") as (_, caller), anyio.create_task_group() as tasks:
        await caller.ask("other")
        server.late = frozenset({"sessions/create"})
        tasks.start_soon(caller.ask, "tools/call")
        await server.asked.wait()
        await caller.tell("notifications/cancelled", requestId=3)
        await caller.tell("notifications/cancelled", requestId=77)
        server.go.set()
        await caller.ask("other")
        assert len(server.sent("tools/call")) == 1
        tasks.cancel_scope.cancel()


_who: ContextVar[str] = ContextVar("who", default="anonymous")


async def test_a_repeated_request_is_sent_in_the_context_of_its_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traces and the like belong to the call, also where its request is sent a second time."""
    server = Server({"tools/call": losing("id-1")})
    seen: list[str] = []

    @asynccontextmanager
    async def transport() -> AsyncIterator[Any]:
        async with server.transport() as (read, write):
            send = write.send

            async def noting(item: Any) -> None:
                if plain(item)["method"] == "tools/call":
                    seen.append(_who.get())
                await send(item)

            monkeypatch.setattr(write, "send", noting)
            yield read, write

    async with calling(with_sessions(transport, on_not_found="recreate")) as caller:
        _who.set("ann")
        await caller.ask("tools/call")
    assert seen == ["ann", "ann"]


@pytest.mark.parametrize("on_not_found", ["raise", "recreate"])
async def test_sessions_that_the_server_lost_do_not_pile_up(on_not_found: Any) -> None:
    """A client that begins a session per conversation, on a server that forgets them, keeps none of them."""
    server = Server({"tools/call": lambda message: error(LOST, **(session_of(message) or {}))})
    async with talk(server, on_not_found=on_not_found) as (sessions, caller):
        for _ in range(20):
            with sessions.use(sessions.new()):
                await caller.ask("tools/call")
        assert sessions._router is not None
        assert not sessions._router.unnamed
    assert server.sent("sessions/delete") == []
