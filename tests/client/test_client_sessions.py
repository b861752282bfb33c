"""The session that a call goes in, and how a connection is entered and left."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from mcp_sessions import ConfigurationError
from mcp_sessions.client import ClientError, NoAnswer, with_sessions
from mcp_sessions.client import _sessions as sessions
from mcp_sessions.client._session import SessionMetadata

from .scripted import Server, calling, error, talk


async def test_the_innermost_choice_counts() -> None:
    """`use` nests, `use(None)` chooses none, and outside of all there is the default session."""
    server = Server()
    async with talk(server) as (sessions, caller):
        await caller.ask("tools/call")
        with sessions.use(sessions.new()):
            await caller.ask("tools/call")
            with sessions.use(None) as chosen:
                assert [chosen, sessions.current] == [None, None]
                await caller.ask("tools/call")
            await caller.ask("tools/call")
        await caller.ask("tools/call")
    ids = [sent and sent["sessionId"] for sent in server.carried("tools/call")]
    assert ids == ["id-1", "id-2", None, "id-2", "id-1"]


async def test_choices_on_two_servers_do_not_touch_each_other() -> None:
    """Each `use` is about its own connection; a session of one is refused by the other."""
    one, other = Server(), Server()
    here, there = with_sessions(one.transport), with_sessions(other.transport)
    async with calling(here) as mine, calling(there) as theirs:
        with here.use(here.new()) as held, there.use(None):
            assert here.current is held
            await mine.ask("tools/call")
            await theirs.ask("tools/call")
        with pytest.raises(ValueError, match="another connection"):
            there.use(held).__enter__()
        with pytest.raises(ValueError, match="another connection"):
            await there.delete(here.new())
    assert (one.carried("tools/call"), other.carried("tools/call")) == ([{"sessionId": "id-1"}], [None])


async def test_a_name_is_one_session() -> None:
    sessions = with_sessions(Server().transport)
    assert sessions.open("thread") is sessions.open("thread")
    assert sessions.open("") is sessions.current
    assert sessions.names == []


def test_nothing_shows_a_credential() -> None:
    sessions = with_sessions(Server().transport)
    held, named = sessions.new(), sessions.open("thread")
    assert repr(sessions) == "<ClientSessions, not connected>"
    assert repr(held) == "<ClientSession unnamed, not created>"
    named.metadata = SessionMetadata("secret", "state", "2026-03-31T23:59:00Z")
    assert repr(named) == "<ClientSession 'thread', created>"
    assert (named.id, str(named.expires_at)) == ("secret", "2026-03-31 23:59:00+00:00")
    held.detach(for_good=True)
    assert repr(held) == "<ClientSession unnamed, ended>"
    assert (held.id, held.expires_at) == (None, None)


async def test_a_connection_is_left_as_it_was_entered() -> None:
    """What the block raises comes out as it is, and the transport's streams are closed before it."""
    server = Server()
    with pytest.raises(KeyError, match="mine"):
        async with with_sessions(server.transport):
            raise KeyError("mine")
    assert server.closed


async def test_streams_are_closed_for_the_client_before_the_transport_is() -> None:
    """So that sessions can be ended when the client has gone."""
    server = Server()
    sessions = with_sessions(server.transport)
    async with sessions as (read, write):
        await write.aclose()
        with pytest.raises(anyio.ClosedResourceError):
            await write.send(None)
        await read.aclose()
        with pytest.raises(anyio.ClosedResourceError):
            await read.receive()
        assert sessions.offered is None
        await server.push(ValueError("unread"))


async def test_a_transports_further_members_are_passed_on() -> None:
    """SDK 1.x gives three."""

    @asynccontextmanager
    async def three() -> AsyncIterator[Any]:
        async with Server().transport() as streams:
            yield (*streams, "more")

    async with with_sessions(three()) as streams:
        assert streams[2] == "more"


async def test_sessions_are_connected_once_at_a_time() -> None:
    """And again later: what has no name is done by then, and what has one begins anew."""
    server = Server()
    sessions = with_sessions(server.transport)
    assert [sessions.offered] == [None]
    async with calling(sessions) as caller:
        assert sessions.offered is True
        assert repr(sessions) == "<ClientSessions, connected>"
        with pytest.raises(ClientError, match="connected already"):
            await sessions.__aenter__()
        with sessions.use(sessions.new()) as unnamed:
            await caller.ask("tools/call")
    assert unnamed is not None
    assert unnamed.ended
    with pytest.raises(NoAnswer, match="not connected"):
        await sessions.delete(sessions.open(""))
    async with calling(sessions) as caller:
        await caller.ask("tools/call")
    assert len(server.sent("sessions/delete")) == 2


async def test_a_transport_of_one_use_is_used_once() -> None:
    sessions = with_sessions(Server().transport())
    async with sessions:
        pass
    with pytest.raises(ClientError, match="a function can return one"):
        await sessions.__aenter__()


async def test_a_transport_that_fails_to_open_leaves_nothing_open() -> None:
    tries = iter([OSError("refused"), None])

    @asynccontextmanager
    async def opening() -> AsyncIterator[Any]:
        if (failure := next(tries)) is not None:
            raise failure
        async with Server().transport() as streams:
            yield streams

    sessions = with_sessions(opening)
    with pytest.raises(OSError, match="refused"):
        await sessions.__aenter__()
    async with calling(sessions):
        pass


async def test_leaving_does_not_wait_for_a_server_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deleting is a courtesy, and bounded; a session that stays behind expires."""
    monkeypatch.setattr(sessions, "LEAVE_TIMEOUT", 0.01)
    server = Server(late=frozenset({"sessions/delete"}))
    async with talk(server) as (_, caller):
        await caller.ask("tools/call")
    assert not server.go.is_set()


async def test_an_answer_may_come_while_the_transport_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under load deletions outlast the time for leaving, and transports write their answers until they have closed."""
    monkeypatch.setattr(sessions, "LEAVE_TIMEOUT", 0.01)
    server = Server(late=frozenset({"sessions/delete"}))

    @asynccontextmanager
    async def slow_to_close() -> AsyncIterator[Any]:
        async with server.transport() as streams:
            yield streams
            server.go.set()
            await anyio.wait_all_tasks_blocked()

    async with calling(with_sessions(slow_to_close)) as caller:
        await caller.ask("tools/call")
    assert server.closed


async def test_a_connection_that_is_gone_is_left_at_once() -> None:
    """Also by a program that is being stopped."""
    for ended in ("by the server", "by the program"):
        server = Server()
        with anyio.CancelScope() as scope:
            async with talk(server) as (_, caller):
                await caller.ask("tools/call")
                if ended == "by the server":
                    server.hang_up()
                else:
                    scope.cancel()
                    await anyio.lowlevel.checkpoint()
        assert server.sent("sessions/delete") == []


async def test_a_refused_farewell_is_no_error() -> None:
    server = Server({"sessions/delete": lambda _: error(-32603)})
    async with talk(server) as (_, caller):
        await caller.ask("tools/call")


def test_wrong_options_are_refused_when_they_are_given() -> None:
    with pytest.raises(ConfigurationError, match='must be "raise" or "recreate"'):
        with_sessions(Server().transport, on_not_found="ignore")  # type: ignore[arg-type]
