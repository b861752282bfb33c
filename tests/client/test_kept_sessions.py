"""What is kept of the sessions when the connection is left, and resumed from the jar on the next one."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from integration.wire import SESSION_KEY
from mcp_sessions import ConfigurationError
from mcp_sessions.client import ClientSessions, JarUnreadable, NoAnswer, SessionJar, with_sessions
from mcp_sessions.client._jar import JarKey
from mcp_sessions.client._session import Metadata

from .scripted import Server, calling, error, session_of

URL = "https://host.example/mcp"
PLACE = JarKey("https://host.example:443/mcp", "")


def kept_on(server: Server, jar: SessionJar, /, **options: Any) -> ClientSessions:
    return with_sessions(server.transport, jar, **{"server": URL, **options})


def stating(*states: dict[str, str]) -> Any:
    """A rule that answers each call with the next state or hint."""
    says = iter(states)
    return lambda message: {"result": {"_meta": {SESSION_KEY: {**(session_of(message) or {}), **next(says)}}}}


async def test_what_has_a_name_is_kept_and_the_rest_is_deleted() -> None:
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


async def test_sessions_in_a_jar_go_on_when_the_same_object_connects_again() -> None:
    """What is held counts, and not what another program has put into the jar meanwhile."""
    server, jar = Server(), SessionJar()
    sessions = kept_on(server, jar)
    for _ in range(2):
        async with calling(sessions) as caller:
            await caller.ask("tools/call")
        await jar.put(PLACE, "", Metadata("theirs"))
    assert server.carried("tools/call") == [{"sessionId": "id-1"}] * 2


async def test_a_resumed_session_can_be_deleted_once_it_is_known_how() -> None:
    """A client that is pinned to a version has sent nothing yet: the session stays where it is until it has."""
    server, jar = Server(), SessionJar()
    await jar.put(PLACE, "", Metadata("kept"))
    sessions = kept_on(server, jar)
    async with calling(sessions, greet=False) as caller:
        with pytest.raises(NoAnswer, match="version is unknown"):
            await sessions.delete(sessions.open(""))
        await caller.ask("ping")
        await sessions.delete(sessions.open(""))
    assert server.carried("sessions/delete") == [{"sessionId": "kept"}]
    assert await jar.load(PLACE) == {}


async def test_a_resumed_session_that_the_server_has_lost_is_dropped() -> None:
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
    server, jar = Server(), SessionJar()
    server.rules["tools/call"] = stating({"state": "one"}, {"state": "two"})
    async with calling(kept_on(server, jar)) as caller:
        await caller.ask("tools/call")
        await jar.put(PLACE, "", Metadata("theirs"))
        await caller.ask("tools/call")
    assert await jar.load(PLACE) == {"": Metadata("theirs")}


async def test_a_jar_that_cannot_be_read_stops_the_start() -> None:
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
    assert all("kept in memory only" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize(
    ("url", "written"),
    [
        ("https://host.example/mcp", "https://host.example:443/mcp"),
        ("HTTPS://user:secret@Host.Example:443/mcp?#top", "https://host.example:443/mcp"),
        ("https://host.example/mcp?tenant=1#top", "https://host.example:443/mcp?tenant=1"),
        ("https://host.example/mcp?b=é x&a=%20", "https://host.example:443/mcp?b=%C3%A9%20x&a=%20"),
        ("http://127.0.0.1:8000?a", "http://127.0.0.1:8000/?a"),
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000/"),
        ("http://[::1]/mcp/", "http://[::1]:80/mcp/"),
    ],
)
async def test_a_server_is_its_origin_path_and_query(url: str, written: str, tmp_path: Path) -> None:
    path = tmp_path / "jar.json"
    async with calling(kept_on(Server(), SessionJar(path), server=url)) as caller:
        await caller.ask("tools/call")
    assert list(json.loads(path.read_text())["servers"]) == [written]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("https://host/mcp?tenant=1", "https://host/mcp?tenant=2"),
        ("https://host/mcp", "https://host/mcp?tenant=1"),
        ("https://ann:a@host/mcp", "https://bob:b@host/mcp"),
    ],
)
async def test_tenants_and_users_of_one_host_have_sessions_of_their_own(one: str, other: str, tmp_path: Path) -> None:
    """None is sent the session of another; each goes on with its own, also where `server=` names no user."""
    jar, server = SessionJar(tmp_path / "jar.json"), Server()
    for url in (one, other, one, other):
        async with calling(with_sessions(connected_to(url, to=server), jar)) as caller:
            await caller.ask("tools/call")
    assert [sent and sent["sessionId"] for sent in server.carried("tools/call")] == ["id-1", "id-2"] * 2


async def test_an_identity_counts_more_than_the_user_of_the_url(tmp_path: Path) -> None:
    path = tmp_path / "jar.json"
    url = "https://ann%40home:a@host.example/mcp"
    for identity in ("", "carl"):
        async with calling(kept_on(Server(), SessionJar(path), server=url, identity=identity)) as caller:
            await caller.ask("tools/call")
    assert set(json.loads(path.read_text())["servers"]["https://host.example:443/mcp"]) == {"ann@home", "carl"}


async def test_a_file_of_before_queries_counted_is_still_good(tmp_path: Path) -> None:
    """A session on a URL without a query is found; it is not that of a URL with one, of whichever tenant."""
    path = tmp_path / "jar.json"
    path.write_text('{"servers":{"https://host.example:443/mcp":{"":{"":{"sessionId":"kept"}}}},"version":1}')
    carried: list[Any] = []
    for url in (f"{URL}?tenant=1", f"{URL}?", URL):
        server = Server()
        async with calling(kept_on(server, SessionJar(path), server=url)) as caller:
            await caller.ask("tools/call")
        carried += server.carried("tools/call")
    assert carried == [{"sessionId": "id-1"}, {"sessionId": "kept"}, {"sessionId": "kept"}]


@pytest.mark.parametrize(
    "url", [None, "", "host/mcp", "ftp://host/mcp", "http:///mcp", "http://host:port/", "http://[::1", "http://h:0/"]
)
async def test_a_jar_needs_the_url_of_the_server(url: str | None) -> None:
    """Nothing is sent to a server that is not known; the message names the option."""
    server = Server()
    with pytest.raises(ConfigurationError, match="set server="):
        await kept_on(server, SessionJar(), server=url).__aenter__()
    assert not server.received


@asynccontextmanager
async def connected_to(*given: Any, to: Server | None = None, **options: Any) -> AsyncIterator[Any]:
    """A transport as contextlib makes them, which shows what it was made with."""
    async with (to or Server()).transport() as streams:
        yield streams


def showing() -> Any:
    transport = connected_to()
    vars(transport)["url"] = URL
    return transport


@pytest.mark.parametrize(
    "make",
    [
        showing,
        lambda: connected_to(7, "text", URL),
        lambda: connected_to(timeout=7, url=URL.upper().replace("/MCP", "/mcp")),
    ],
)
async def test_a_transport_shows_its_url(make: Any) -> None:
    jar = SessionJar()
    async with calling(with_sessions(make, jar)) as caller:
        await caller.ask("tools/call")
    assert await jar.load(PLACE) == {"": Metadata("id-1")}


async def test_a_jar_is_not_opened_for_another_server_than_the_transports() -> None:
    async with with_sessions(connected_to(URL), SessionJar(), server="HTTPS://host.example:443/mcp"):
        pass
    with pytest.raises(ConfigurationError, match="a different server"):
        await with_sessions(connected_to(URL), SessionJar(), server="https://evil.example/mcp").__aenter__()
    with pytest.raises(ConfigurationError, match="a different server"):
        await with_sessions(connected_to(f"{URL}?tenant=1"), SessionJar(), server=f"{URL}?tenant=2").__aenter__()


async def test_sessions_stay_with_their_server_when_the_next_transport_goes_elsewhere() -> None:
    urls = iter([URL, URL, "https://evil.example/mcp"])
    sessions = with_sessions(lambda: connected_to(next(urls)), SessionJar())
    for _ in range(2):
        async with sessions:
            pass
    with pytest.raises(ConfigurationError, match="a different server than the last"):
        await sessions.__aenter__()


async def test_a_corrupt_jar_is_reported_before_anything_is_sent(tmp_path: Path) -> None:
    path = tmp_path / "jar.json"
    path.write_text("spoilt")
    with pytest.raises(JarUnreadable, match="corrupt-1"):
        await kept_on(Server(), SessionJar(path)).__aenter__()
    async with calling(kept_on(Server(), SessionJar(path))) as caller:
        await caller.ask("tools/call")
