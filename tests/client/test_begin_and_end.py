"""How sessions begin and end: when one is created, what becomes of those who wait for it, and when it is deleted."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from mcp_sessions.client import NoAnswer, Refused, SessionNotFound

from .scripted import LOST, Server, error, talk


async def test_a_create_that_is_refused_is_the_callers_error() -> None:
    server = Server({"sessions/create": lambda _: error(-31029)})
    async with talk(server) as (_, caller):
        for _ in range(2):
            with pytest.raises(Refused, match="sessions/create was refused: -31029 no") as refusal:
                await caller.ask("tools/call")
            assert (refusal.value.method, refusal.value.code) == ("sessions/create", -31029)
        del server.rules["sessions/create"]
        assert "result" in await caller.ask("tools/call")


@pytest.mark.parametrize(
    "session", [None, {}, {"sessionId": 7}, *({"sessionId": bad} for bad in ("", " ", "a b", "a\n", "é"))]
)
async def test_a_created_session_must_be_one(session: Any) -> None:
    server = Server({"sessions/create": lambda _: {"result": {"session": session}}})
    async with talk(server) as (_, caller):
        with pytest.raises(NoAnswer, match="holds no session"):
            await caller.ask("tools/call")


@pytest.mark.parametrize(
    ("hint", "expires"),
    [
        ("2026-03-31T23:59:00Z", "2026-03-31T23:59:00+00:00"),
        ("2026-04-01T01:59:00+02:00", "2026-04-01T01:59:00+02:00"),
        ("2026-03-31T23:59:00", "2026-03-31T23:59:00+00:00"),
        ("soon", None),
        (None, None),
    ],
)
async def test_the_hint_of_expiry_is_shown_where_it_can_be_read(hint: str | None, expires: str | None) -> None:
    server = Server({"sessions/create": lambda _: {"result": {"session": {"sessionId": "id-1", "expiresAt": hint}}}})
    async with talk(server) as (sessions, caller):
        await caller.ask("tools/call")
        held = sessions.open("")
        assert (held.expires_at and held.expires_at.isoformat()) == expires


async def test_a_server_that_does_not_answer_is_not_waited_for_for_ever() -> None:
    """An answer that comes too late is dropped, and does not reach the client either."""
    server = Server(late=frozenset({"sessions/create"}))
    async with talk(server, timeout=0.01) as (_, caller):
        with pytest.raises(NoAnswer, match=r"sessions/create was not answered: no answer within 0.01 s"):
            await caller.ask("tools/call")
        server.go.set()
        await caller.ask("ping")
        assert caller.others == []


async def test_a_connection_that_ends_while_a_session_is_made_ends_the_wait() -> None:
    server = Server(late=frozenset({"sessions/create"}))
    async with talk(server) as (_, caller), anyio.create_task_group() as tasks:
        tasks.start_soon(hang_up_when_asked, server)
        with pytest.raises(NoAnswer, match="the connection is gone"):
            await caller.ask("tools/call")


async def hang_up_when_asked(server: Server) -> None:
    await server.asked.wait()
    server.hang_up()


async def test_a_caller_who_gives_up_takes_nothing_from_the_others() -> None:
    server = Server(late=frozenset({"sessions/create"}))
    async with talk(server) as (_, caller), anyio.create_task_group() as tasks:
        tasks.start_soon(caller.ask, "tools/call")
        await server.asked.wait()
        with anyio.move_on_after(0):
            await caller.ask("tools/call")
        server.go.set()
        await caller.ask("tools/call")
    assert len(server.sent("sessions/create")) == 1
    assert len(server.sent("tools/call")) == 2


async def test_deleting_ends_the_session_at_once() -> None:
    """One without a name is done, one with a name begins anew; one that has not begun asks the server nothing."""
    server = Server()
    async with talk(server) as (sessions, caller):
        unnamed, named = sessions.new(), sessions.open("thread")
        for held in (unnamed, named):
            with sessions.use(held):
                await caller.ask("tools/call")
            await sessions.delete(held)
        assert server.carried("sessions/delete") == [{"sessionId": "id-1"}, {"sessionId": "id-2"}]
        await sessions.delete(named)
        assert len(server.sent("sessions/delete")) == 2
        with sessions.use(unnamed), pytest.raises(SessionNotFound):
            await caller.ask("tools/call")
        with sessions.use(named):
            await caller.ask("tools/call")
        assert (named.ended, unnamed.ended) == (False, True)


async def test_deleting_waits_for_a_session_that_is_being_made() -> None:
    """Else it would be left behind."""
    server = Server(late=frozenset({"sessions/create"}))
    async with talk(server) as (sessions, caller), anyio.create_task_group() as tasks:
        tasks.start_soon(caller.ask, "tools/call")
        await server.asked.wait()
        server.go.set()
        held = sessions.current
        assert held is not None
        await sessions.delete(held)
        assert len(server.sent("sessions/delete")) == 1


@pytest.mark.parametrize(("code", "is_error"), [(LOST, False), (-32603, True)])
async def test_deleting_what_the_server_has_lost_is_not_an_error(code: int, is_error: bool) -> None:
    server = Server({"sessions/delete": lambda _: error(code)})
    async with talk(server) as (sessions, caller):
        await caller.ask("tools/call")
        held = sessions.current
        assert held is not None
        if is_error:
            with pytest.raises(Refused):
                await sessions.delete(held)
        else:
            await sessions.delete(held)
        assert not held.created
