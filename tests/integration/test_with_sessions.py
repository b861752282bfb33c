"""The frameworks' own clients hold sessions, with one line more than without; and `docs/client.md` says how."""

import re
from collections import defaultdict
from importlib import import_module
from pathlib import Path
from typing import Any

import anyio
import pytest
from environments import INSTALLED, needs
from pages import DOCS, blocks, run

from client.peers import peer, served
from mcp_sessions import ConfigurationError
from mcp_sessions.client import FileStorage, MemoryStorage, __all__, fastmcp_transport, with_sessions
from mcp_sessions.client._sessions import LEAVE_TIMEOUT
from mcp_sessions.client._storage import LEEWAY

from .servers import CELLS, COVERING, Cell, bare

http: Any = import_module("httpx2" if "httpx2" in INSTALLED else "httpx")
covering = pytest.mark.parametrize("cell", COVERING, ids=str)


# --- what the page shows ---

PAGE = (DOCS / "client.md").read_text("utf-8")
COUNTED, *SHOWN = blocks(PAGE, "text")


@pytest.mark.parametrize(
    ("block", "shown"),
    [
        pytest.param(*pair, marks=needs("mcp<2" if number == 1 else "mcp>=2"), id=str(number))
        for number, pair in enumerate(zip(blocks(PAGE), (COUNTED, COUNTED, *SHOWN), strict=True))
    ],
)
async def test_what_the_page_shows_is_printed(
    block: str, shown: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each block as a program, with a real server; conversations may come in any order."""
    monkeypatch.chdir(tmp_path)
    async with served(CELLS[-1]) as server:
        await anyio.to_thread.run_sync(run, block.replace("http://127.0.0.1:8000/mcp", server.url))
    assert sorted(capsys.readouterr().out.splitlines()) == sorted(shown.splitlines())


def test_the_page_names_what_there_is() -> None:
    errors = set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE))
    assert errors == {"Refused", "NotOffered", "NoAnswer", "SessionNotFound"}
    assert errors < set(__all__)
    assert f"({LEAVE_TIMEOUT:g} s)" in PAGE
    assert LEEWAY.days == 1


# --- sessions in each client ---


@covering
async def test_calls_go_in_one_session_that_is_created_and_deleted_by_itself(cell: Cell) -> None:
    """The program says nothing of sessions, and nothing stays behind; headers are those that the era asks for."""
    async with served(cell) as server:
        sessions = server.sessions()
        async with peer(cell, sessions) as client:
            assert [await client.tool("count") for _ in range(3)] == ["1", "2", "3"]
            held = sessions.open("")
            assert held.expires_at is not None
            used = held.id
            fork = await sessions.fork()
            with sessions.use(fork):
                assert await client.tool("count") == "4"
            ids = {used, fork.id}
        assert {*server.carried("tools/call")} == {*server.carried("sessions/delete")} == ids
        assert len(server.sent("sessions/create")) == 1
        assert not held.created
        versions = {headers["mcp-protocol-version"] for headers, _ in server.seen[3:]}
        assert versions == {"2026-07-28" if cell.modern else "2025-11-25"}
        for headers, message in server.seen:
            if message.get("method", "").startswith("sessions/"):
                assert headers.get("mcp-method") == (message["method"] if cell.modern else None)
        for method in ("tools/call", "sessions/delete"):
            named = {*server.mirrored(method)}
            assert named == ids if cell.modern else len(named) == 1
            assert (None in named) is not (cell.modern or cell.stateful)


@covering
async def test_a_lost_session_is_an_error_and_the_next_call_begins_anew(cell: Cell) -> None:
    """Another client has deleted it: requests that carry metadata of their own are left as they are."""
    async with served(cell) as server:
        sessions = server.sessions()
        async with peer(cell, sessions) as client:
            await client.tool("count")
            await client.delete({"sessionId": str(sessions.open("").id)})
            with pytest.raises(Exception, match="Session not found") as refusal:
                await client.tool("count")
            assert getattr(refusal.value, "error").code == -32043  # noqa: B009
            assert getattr(refusal.value, "error").data == {"reason": "ended"}  # noqa: B009
            assert await client.tool("count") == "1"


@covering
async def test_a_server_without_sessions_is_used_as_it_is(cell: Cell) -> None:
    """Nothing is created, and no request carries anything of ours but the declaration before the server answered."""
    async with served(cell, bare) as server:
        sessions = server.sessions()
        async with peer(cell, sessions) as client:
            with sessions.use(sessions.new()):
                assert await client.tool("whoami") == "nobody"
            assert sessions.offered is False
        (call,) = server.sent("tools/call")
        assert "experimental" not in str(call)
        assert server.carried("tools/call") == [None]
        assert not server.sent("sessions/create") + server.sent("sessions/delete")


@needs("mcp>=2")
async def test_of_the_calls_in_many_conversations_none_crosses() -> None:
    """With the newest client and era: each counts in a session of its own."""
    newest = Cell("sdk2", modern=True, stateful=False, json=True)
    counts: dict[int, list[str]] = defaultdict(list)
    async with served(newest) as server, peer(newest, sessions := server.sessions()) as client:

        async def converse(number: int) -> None:
            for _ in range(3):
                counts[number].append(await client.tool("count"))

        async with anyio.create_task_group() as tasks:
            for number in range(20):
                with sessions.use(sessions.new()):
                    tasks.start_soon(converse, number)
    assert counts == {number: ["1", "2", "3"] for number in range(20)}


# --- what `with_sessions` takes ---


@pytest.mark.parametrize("cell", COVERING[::2], ids=str)  # each era
async def test_a_url_is_connected_to_as_often_as_the_program_likes(cell: Cell, tmp_path: Path) -> None:
    """By a client of the program's own, too, which all requests go by and which stays open."""
    async with served(cell) as server, http.AsyncClient(headers={"x-who": "ann"}, timeout=30) as own:
        for expected in ("1", "2"):
            async with peer(cell, with_sessions(server.url, FileStorage(tmp_path / "sessions.db"))) as client:
                assert await client.tool("count") == expected
        server.seen.clear()
        sessions = with_sessions(server.url, http_client=own)
        for _ in range(2):
            async with peer(cell, sessions) as client:
                assert await client.tool("count") == "1"
            assert not own.is_closed
        assert {headers.get("x-who") for headers, _ in server.seen} == {"ann"}
        assert len(server.sent("sessions/create")) == len(server.sent("sessions/delete")) == 2
    if cell.framework.startswith("fastmcp"):
        assert repr(fastmcp_transport(sessions)) == "<SessionTransport of <ClientSessions, not connected>>"


NO_SOURCES = ["", "ftp://host/mcp", "host/mcp", "http://", "http://host:port", "http://[::1", None]
A_CLIENT = import_module("fastmcp").Client("http://host/mcp")


@pytest.mark.parametrize(
    ("source", "options", "remedy"),
    [
        *(
            (odd, {}, r'takes the URL of a server, such as "http://.* a transport such as ')
            for odd in (*NO_SOURCES, A_CLIENT)
        ),
        (object, {"http_client": http.AsyncClient()}, "goes with a URL; a transport has one already"),
        # of another transport nobody knows which server it connects to
        (object, {"storage": MemoryStorage()}, r"with_sessions\(url, storage\)"),
        ("http://host/mcp", {"on_not_found": "ignore"}, 'must be "raise" or "recreate"'),
    ],
)
def test_anything_else_is_refused(source: Any, options: dict[str, Any], remedy: str) -> None:
    with pytest.raises(ConfigurationError, match=remedy):
        with_sessions(source, **options)
