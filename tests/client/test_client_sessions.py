"""Which session a call goes in, and what is kept of the sessions when the connection is left."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from integration.wire import SESSION_KEY
from mcp_sessions import ConfigurationError
from mcp_sessions.client import (
    ClientError,
    ClientSessions,
    JarUnreadable,
    NoAnswer,
    SessionJar,
    sessions,
    with_sessions,
)
from mcp_sessions.client.jar import Place
from mcp_sessions.client.session import Metadata

from .scripted import Server, calling, error, session_of

URL = "https://host.example/mcp"
PLACE = Place("https://host.example:443/mcp", "")


def kept_on(server: Server, jar: SessionJar, /, **options: Any) -> ClientSessions:
    """Sessions on a scripted server, in a jar."""
    return with_sessions(server.transport, jar, **{"server": URL, **options})


def stating(*states: dict[str, str]) -> Any:
    """A rule that answers each call with the next state or hint."""
    says = iter(states)
    return lambda message: {"result": {"_meta": {SESSION_KEY: {**(session_of(message) or {}), **next(says)}}}}


# --- choosing ------------------------------------------------------------------------------------


async def test_the_innermost_choice_counts() -> None:
    """`use` nests, `use(None)` chooses none, and outside of all there is the default session."""
    server = Server()
    sessions = with_sessions(server.transport)
    async with calling(sessions) as caller:
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
    assert (one.carried("tools/call"), other.carried("tools/call")) == ([{"sessionId": "id-1"}], [None])


async def test_a_name_is_one_session() -> None:
    """Whoever opens it gets the same handle."""
    sessions = with_sessions(Server().transport)
    assert sessions.open("thread") is sessions.open("thread")
    assert sessions.open("") is sessions.current
    assert sessions.names == []


def test_nothing_shows_a_credential() -> None:
    """Handles and connections say where they stand."""
    sessions = with_sessions(Server().transport)
    held, named = sessions.new(), sessions.open("thread")
    assert repr(sessions) == "<ClientSessions, not connected>"
    assert repr(held) == "<HeldSession unnamed, not begun>"
    named.hold(Metadata("secret", "state", "2026-03-31T23:59:00Z"))
    assert repr(named) == "<HeldSession 'thread', begun>"
    assert (named.id, str(named.expires_at)) == ("secret", "2026-03-31 23:59:00+00:00")
    held.let_go(for_good=True)
    assert repr(held) == "<HeldSession unnamed, ended>"
    assert (held.id, held.expires_at) == (None, None)


# --- connecting ----------------------------------------------------------------------------------


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
        await server.push(ValueError("to nobody"))


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
    """As contextlib makes them; the message says what to give instead."""
    sessions = with_sessions(Server().transport())
    async with sessions:
        pass
    with pytest.raises(ClientError, match="a function that makes one for each connection"):
        await sessions.__aenter__()


async def test_a_transport_that_fails_to_open_leaves_nothing_open() -> None:
    """The next try is a new one."""
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
    monkeypatch.setattr(sessions, "FAREWELL", 0.01)
    server = Server(late=frozenset({"sessions/delete"}))
    async with calling(with_sessions(server.transport)) as caller:
        await caller.ask("tools/call")
    assert not server.go.is_set()


async def test_a_connection_that_is_gone_is_left_at_once() -> None:
    """Also by a program that is being stopped."""
    for ended in ("by the server", "by the program"):
        server = Server()
        with anyio.CancelScope() as scope:
            async with calling(with_sessions(server.transport)) as caller:
                await caller.ask("tools/call")
                if ended == "by the server":
                    server.hang_up()
                else:
                    scope.cancel()
                    await anyio.lowlevel.checkpoint()
        assert server.sent("sessions/delete") == []


async def test_a_refused_farewell_is_no_error() -> None:
    """The block is left all the same."""
    server = Server({"sessions/delete": lambda _: error(-32603)})
    async with calling(with_sessions(server.transport)) as caller:
        await caller.ask("tools/call")


def test_wrong_options_are_refused_when_they_are_given() -> None:
    """With the remedy."""
    with pytest.raises(ConfigurationError, match='must be "raise" or "recreate"'):
        with_sessions(Server().transport, on_lost="ignore")  # type: ignore[arg-type]


# --- the jar -------------------------------------------------------------------------------------


async def test_what_has_a_name_is_kept_and_the_rest_is_deleted() -> None:
    """The default session's name is the empty one."""
    server, jar = Server(), SessionJar()
    sessions = kept_on(server, jar)
    async with calling(sessions) as caller:
        for held in (sessions.open(""), sessions.open("thread"), sessions.new(), sessions.open("never used")):
            with sessions.use(held if held.name != "never used" else None):
                await caller.ask("tools/call")
    assert server.carried("sessions/delete") == [{"sessionId": "id-3"}]
    assert await jar.load(PLACE) == {"": Metadata("id-1"), "thread": Metadata("id-2")}
    assert sessions.names == ["", "thread"]


async def test_sessions_are_resumed_from_the_jar() -> None:
    """Those opened before the connection is made, those opened later, and the default one."""
    server, jar = Server(), SessionJar()
    for name in ("", "early", "late"):
        await jar.put(PLACE, name, Metadata(f"kept{name}", f"state{name}"))
    sessions = kept_on(server, jar)
    early = sessions.open("early")
    async with calling(sessions) as caller:
        assert sessions.names == ["", "early", "late"]
        for held in (sessions.open(""), early, sessions.open("late"), sessions.open("new")):
            with sessions.use(held):
                await caller.ask("tools/call")
    assert [sent and sent["sessionId"] for sent in server.carried("tools/call")] == [
        "kept",
        "keptearly",
        "keptlate",
        "id-1",
    ]


async def test_a_resumed_session_can_be_deleted_once_it_is_known_how() -> None:
    """A client that is pinned to a version has sent nothing yet: the session stays where it is until it has."""
    server, jar = Server(), SessionJar()
    await jar.put(PLACE, "", Metadata("kept"))
    sessions = kept_on(server, jar)
    async with calling(sessions, greet=False) as caller:
        with pytest.raises(NoAnswer, match="how to speak"):
            await sessions.delete(sessions.open(""))
        await caller.ask("ping")
        await sessions.delete(sessions.open(""))
    assert server.carried("sessions/delete") == [{"sessionId": "kept"}]
    assert await jar.load(PLACE) == {}


async def test_a_resumed_session_that_the_server_has_lost_is_dropped() -> None:
    """The jar holds it no more, whether the program begins another or not."""
    server, jar = Server({"tools/call": lambda message: error(-32043, **(session_of(message) or {}))}), SessionJar()
    await jar.put(PLACE, "", Metadata("kept"))
    async with calling(kept_on(server, jar)) as caller:
        await caller.ask("tools/call")
        assert await jar.load(PLACE) == {}


async def test_the_jar_is_written_when_it_would_be_missed() -> None:
    """With each state, and with a hint that moved by minutes; a smaller move is written on leaving."""
    hints = ["2999-01-01T00:00:00Z", "2999-01-01T00:00:01Z", "2999-01-01T00:05:00Z", "2999-01-01T00:05:01Z"]
    server, jar = Server(), SessionJar()
    server.rules["tools/call"] = stating({"state": "one"}, *({"expiresAt": hint} for hint in hints))
    held: list[Any] = []
    async with calling(kept_on(server, jar)) as caller:
        for _ in range(5):
            await caller.ask("tools/call")
            held.append((await jar.load(PLACE))[""])
    assert [(entry.state, entry.expires_at) for entry in held] == [
        ("one", None),
        ("one", hints[0]),
        ("one", hints[0]),
        ("one", hints[2]),
        ("one", hints[2]),
    ]
    assert (await jar.load(PLACE))[""].expires_at == hints[3]


async def test_a_session_that_another_program_began_in_its_place_is_left_alone() -> None:
    """The last one to begin one counts."""
    server, jar = Server(), SessionJar()
    server.rules["tools/call"] = stating({"state": "one"}, {"state": "two"})
    async with calling(kept_on(server, jar)) as caller:
        await caller.ask("tools/call")
        await jar.put(PLACE, "", Metadata("theirs"))
        await caller.ask("tools/call")
    assert await jar.load(PLACE) == {"": Metadata("theirs")}


async def test_a_jar_that_cannot_be_read_stops_the_start() -> None:
    """Before anything is sent."""
    server = Server()
    path = Path("/proc/self/nowhere/jar.json")
    with pytest.raises(OSError, match="nowhere"):
        await kept_on(server, SessionJar(path)).__aenter__()
    assert not server.received


async def test_a_jar_that_cannot_be_written_later_is_reported_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The calls go on; what could not be written is held, and written when that works again."""
    path = tmp_path / "jar.json"
    server, jar = Server(), SessionJar(path)
    server.rules["tools/call"] = stating({"state": "one"}, {"state": "two"}, {})
    with caplog.at_level(logging.ERROR, "mcp_sessions"):
        async with calling(kept_on(server, jar)) as caller:
            path.write_text("spoilt")
            await caller.ask("tools/call")  # moved aside by the first write, and written by the second
            path.rename(tmp_path / "aside")
            path.mkdir()
            await caller.ask("tools/call")
            path.rmdir()
            (tmp_path / "aside").rename(path)
            await caller.ask("tools/call")
    assert await jar.load(PLACE) == {"": Metadata("id-1", "two")}
    assert len(caplog.records) == 2
    assert all("held in memory alone" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize(
    ("options", "remedy"), [({"server": None}, "set server="), ({"server": "host/mcp"}, "set server=")]
)
async def test_a_jar_needs_to_know_the_server(options: dict[str, Any], remedy: str) -> None:
    """Nothing is sent to a server that is not known."""
    server = Server()
    with pytest.raises(ConfigurationError, match=remedy):
        await kept_on(server, SessionJar(), **options).__aenter__()


async def test_a_jar_is_not_opened_for_another_server_than_the_transports() -> None:
    """`server=` may repeat what the transport shows and not contradict it."""

    @asynccontextmanager
    async def transport(url: str) -> AsyncIterator[Any]:
        async with Server().transport() as streams:
            yield streams

    async with with_sessions(transport(URL), SessionJar(), server="HTTPS://host.example:443/mcp"):
        pass
    with pytest.raises(ConfigurationError, match="another server"):
        await with_sessions(transport(URL), SessionJar(), server="https://evil.example/mcp").__aenter__()


async def test_sessions_stay_with_their_server_when_the_next_transport_goes_elsewhere() -> None:
    """A function that makes transports must make them to one server."""
    urls = iter([URL, URL, "https://evil.example/mcp"])

    @asynccontextmanager
    async def transport(url: str) -> AsyncIterator[Any]:
        async with Server().transport() as streams:
            yield streams

    sessions = with_sessions(lambda: transport(next(urls)), SessionJar())
    for _ in range(2):
        async with sessions:
            pass
    with pytest.raises(ConfigurationError, match="another server than the last"):
        await sessions.__aenter__()


async def test_a_corrupt_jar_is_told_before_anything_is_sent(tmp_path: Path) -> None:
    """And the next start works."""
    path = tmp_path / "jar.json"
    path.write_text("spoilt")
    with pytest.raises(JarUnreadable, match="corrupt-1"):
        await kept_on(Server(), SessionJar(path)).__aenter__()
    async with calling(kept_on(Server(), SessionJar(path))) as caller:
        await caller.ask("tools/call")
