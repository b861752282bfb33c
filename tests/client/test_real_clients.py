"""The frameworks' own clients hold sessions, with one line more than without, in both eras."""

from __future__ import annotations

from collections import Counter
from typing import Any

import anyio
import pytest
from environments import needs

from integration.servers import COVERING, Cell, bare

from .peers import Log, in_process, peer, served

covering = pytest.mark.parametrize("cell", COVERING, ids=str)


@covering
async def test_calls_go_in_one_session_that_is_created_and_deleted_by_itself(cell: Cell) -> None:
    """The program says nothing of sessions, and its state goes from call to call; nothing stays behind."""
    async with served(cell) as server:
        sessions = server.sessions()
        async with peer(cell, sessions) as client:
            assert [await client.tool("count") for _ in range(3)] == ["1", "2", "3"]
            held = sessions.current
            assert held is not None
            assert held.expires_at is not None
            used = held.id
            with sessions.use(await sessions.fork()) as fork:
                assert await client.tool("count") == "4"
            assert fork is not None
            ids = {used, fork.id}
        assert set(server.carried("tools/call")) == ids
        assert len(server.sent("sessions/create")) == 1
        assert {*server.carried("sessions/delete")} == ids
        assert not held.created


@covering
async def test_a_lost_session_is_an_error_and_the_next_call_begins_anew(cell: Cell) -> None:
    """Another client has deleted it: requests that carry metadata of their own are left as they are."""
    async with served(cell) as server:
        sessions = server.sessions()
        async with peer(cell, sessions) as client:
            await client.tool("count")
            assert sessions.current is not None
            await client.delete({"sessionId": str(sessions.current.id)})
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


@covering
async def test_requests_are_what_the_era_asks_for(cell: Cell) -> None:
    """Version and method in the headers and the envelope; the id is mirrored where no transport session holds it."""
    async with served(cell) as server:
        sessions = server.sessions()
        async with peer(cell, sessions) as client:
            await client.tool("whoami")
            held = sessions.current
            assert held is not None
            used = held.id
        versions = {headers["mcp-protocol-version"] for headers, _ in server.seen[3:]}
        assert versions == {"2026-07-28" if cell.modern else "2025-11-25"}
        for headers, message in server.seen:
            if message.get("method", "").startswith("sessions/"):
                assert headers.get("mcp-method") == (message["method"] if cell.modern else None)
        expected = used if cell.modern else server.mirrored("tools/call")[0]
        assert server.mirrored("sessions/delete") == [expected]
        assert server.mirrored("tools/call") == [expected]
        assert (expected is not None) is (cell.modern or cell.stateful)
        assert all(declared["experimental"] == {"sessions": {}} for declared in declarations(cell, server))


def declarations(cell: Cell, log: Log) -> list[dict[str, Any]]:
    """Where the client says that it knows sessions, so that no transport session is made for it."""
    if not cell.modern:
        return [message["params"]["capabilities"] for message in log.sent("initialize")]
    envelopes = [message["params"]["_meta"] for _, message in log.seen]
    assert len(envelopes) >= 3
    return [envelope["io.modelcontextprotocol/clientCapabilities"] for envelope in envelopes]


@needs("mcp>=2")
@pytest.mark.parametrize(
    ("conversations", "calls"), [(20, 4), pytest.param(50, 20, marks=pytest.mark.nightly)], ids=["80", "1,000"]
)
async def test_of_the_calls_in_many_conversations_none_crosses(conversations: int, calls: int) -> None:
    """With the newest client in the newest era, on a server that costs little and answers in this process.

    Each conversation sees its own session alone, and counts.
    """
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
