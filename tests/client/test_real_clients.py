"""The frameworks' own clients hold sessions, with one line more than without; and what that line takes."""

from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

import anyio
import pytest
from environments import INSTALLED, needs

from integration.servers import COVERING, Cell, bare
from mcp_sessions import ConfigurationError
from mcp_sessions.client import FileStorage, MemoryStorage, fastmcp_transport, with_sessions

from .peers import in_process, peer, served

http: Any = import_module("httpx2" if "httpx2" in INSTALLED else "httpx")
covering = pytest.mark.parametrize("cell", COVERING, ids=str)
each_era = pytest.mark.parametrize("cell", COVERING[::2], ids=str)


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
@pytest.mark.parametrize(
    ("conversations", "calls"), [(20, 4), pytest.param(50, 20, marks=pytest.mark.nightly)], ids=["80", "1,000"]
)
async def test_of_the_calls_in_many_conversations_none_crosses(conversations: int, calls: int) -> None:
    """With the newest client and era, in one process: each conversation sees its own session alone, and counts."""
    seen: Counter[tuple[int, str]] = Counter()
    newest = Cell("sdk2", modern=True, stateful=False, json=True)
    async with in_process() as sessions, peer(newest, sessions) as client:

        async def ask(number: int, times: int) -> None:
            for _ in range(times):
                seen[number, await client.tool("whoami")] += 1

        async def converse(number: int) -> None:
            with sessions.use(sessions.new()):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(ask, number, calls // 2)
                    tasks.start_soon(ask, number, calls // 2 - 1)
                assert await client.tool("count") == "1"

        async with anyio.create_task_group() as tasks:
            for number in range(conversations):
                tasks.start_soon(converse, number)
    assert sorted(number for number, _ in seen) == list(range(conversations))
    assert len({who for _, who in seen}) == conversations
    assert set(seen.values()) == {calls - 1}  # and one that counted


# --- what `with_sessions` takes ---


@each_era
async def test_a_url_is_connected_to(cell: Cell, tmp_path: Path) -> None:
    """As often as the program likes, and named sessions can be stored by it."""
    async with served(cell) as server:
        for expected in ("1", "2"):
            sessions = with_sessions(server.url, FileStorage(tmp_path / "sessions.db"))
            async with peer(cell, sessions) as client:
                assert await client.tool("count") == expected
        sessions = with_sessions(server.url)
        for _ in range(2):
            async with peer(cell, sessions) as client:
                assert await client.tool("count") == "1"
        assert len(server.sent("sessions/create")) == 3
        assert len(server.sent("sessions/delete")) == 2


@each_era
async def test_a_url_goes_with_a_client_of_the_programs_own(cell: Cell) -> None:
    """All requests go by it, those about sessions included, and it stays open."""
    async with served(cell) as server, http.AsyncClient(headers={"x-who": "ann"}, timeout=30) as own:
        for _ in range(2):
            async with peer(cell, with_sessions(server.url, http_client=own)) as client:
                assert await client.tool("count") == "1"
            assert not own.is_closed
        assert {headers.get("x-who") for headers, _ in server.seen} == {"ann"}
        assert len(server.sent("sessions/delete")) == 2


@pytest.mark.parametrize("cell", [cell for cell in COVERING[::2] if cell.framework.startswith("fastmcp")], ids=str)
async def test_fastmcps_client_takes_sessions_as_its_transport(cell: Cell) -> None:
    async with served(cell) as server:
        transport = fastmcp_transport(with_sessions(server.url))
        assert repr(transport) == "<SessionTransport of <ClientSessions, not connected>>"
        client = import_module("fastmcp").Client(transport)
        for _ in range(2):
            async with client:
                assert (await client.call_tool("count")).content[0].text == "1"
        assert len(server.sent("sessions/create")) == 2


class Client:
    """A client, which gives no streams."""

    async def __aenter__(self) -> Any: ...

    async def __aexit__(self, *_: object) -> None: ...

    def call_tool(self) -> None: ...


NO_SOURCES = ["", "ftp://host/mcp", "host/mcp", "http://", "http://host:port", "http://[::1", None, Client()]


@pytest.mark.parametrize(
    ("source", "options", "remedy"),
    [
        *((odd, {}, r'takes the URL of a server, such as "http://.* a transport such as ') for odd in NO_SOURCES),
        (Client, {"http_client": http.AsyncClient()}, "goes with a URL; a transport has its own"),
        # of another transport nobody knows which server it connects to
        (Client, {"storage": MemoryStorage()}, r"with_sessions\(url, storage\)"),
        ("http://host/mcp", {"on_not_found": "ignore"}, 'must be "raise" or "recreate"'),
    ],
)
def test_anything_else_is_refused(source: Any, options: dict[str, Any], remedy: str) -> None:
    with pytest.raises(ConfigurationError, match=remedy):
        with_sessions(source, **options)
