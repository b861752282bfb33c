"""The frameworks' own clients hold sessions, with one line more than without, in both eras."""

from __future__ import annotations

from collections import Counter
from typing import Any

import anyio
import pytest
from environments import needs

from integration.servers import CELLS, COVERING, Cell, bare
from integration.serving import Peer
from mcp_sessions.client import ClientSessions

from .peers import Log, in_process, peer, served

covering = pytest.mark.parametrize("cell", COVERING, ids=str)
few_cells = pytest.mark.parametrize("cell", [cell for cell in CELLS if not cell.json and not cell.stateful], ids=str)


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
        assert set(server.log.carried("tools/call")) == ids
        assert len(server.log.sent("sessions/create")) == 1
        assert {*server.log.carried("sessions/delete")} == ids
        assert not held.created


@few_cells
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
        (call,) = server.log.sent("tools/call")
        assert "experimental" not in str(call)
        assert server.log.carried("tools/call") == [None]
        assert not server.log.sent("sessions/create") + server.log.sent("sessions/delete")


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
        versions = {headers["mcp-protocol-version"] for headers, _ in server.log.seen[3:]}
        assert versions == {"2026-07-28" if cell.modern else "2025-11-25"}
        for headers, message in server.log.seen:
            if message.get("method", "").startswith("sessions/"):
                assert headers.get("mcp-method") == (message["method"] if cell.modern else None)
        expected = used if cell.modern else server.log.mirrored("tools/call")[0]
        assert server.log.mirrored("sessions/delete") == [expected]
        assert server.log.mirrored("tools/call") == [expected]
        assert (expected is not None) is (cell.modern or cell.stateful)
        assert all(declared["experimental"] == {"sessions": {}} for declared in declarations(cell, server.log))


def declarations(cell: Cell, log: Log) -> list[dict[str, Any]]:
    """Where the client says that it knows sessions, so that no transport session is made for it."""
    if not cell.modern:
        return [message["params"]["capabilities"] for message in log.sent("initialize")]
    envelopes = [message["params"]["_meta"] for _, message in log.seen]
    assert len(envelopes) >= 3
    return [envelope["io.modelcontextprotocol/clientCapabilities"] for envelope in envelopes]


async def converse_at_once(sessions: ClientSessions, client: Peer, conversations: int, per: int) -> None:
    """So many calls in each of so many conversations, all at once: each sees its own session alone, and counts."""
    seen: Counter[tuple[int, str]] = Counter()

    async def ask(number: int, times: int) -> None:
        for _ in range(times):
            seen[number, await client.tool("whoami")] += 1

    async def converse(number: int) -> None:
        with sessions.use(sessions.new()):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask, number, per // 2)
                tasks.start_soon(ask, number, per // 2 - 1)
            assert await client.tool("count") == "1"

    async with anyio.create_task_group() as tasks:
        for number in range(conversations):
            tasks.start_soon(converse, number)
    assert sorted(number for number, _ in seen) == list(range(conversations))
    assert len({who for _, who in seen}) == conversations
    assert set(seen.values()) == {per - 1}  # and one that counted


@needs("mcp>=2")
async def test_of_the_calls_in_many_conversations_none_crosses() -> None:
    """With the newest client in the newest era, on a server that costs little and answers in this process."""
    newest = Cell("sdk2", modern=True, stateful=False, json=True)
    async with in_process() as sessions, peer(newest, sessions) as client:
        await converse_at_once(sessions, client, 20, 4)
