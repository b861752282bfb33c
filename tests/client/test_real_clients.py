"""The frameworks' own clients hold sessions, with one line more than without, in both eras."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from environments import needs
from starlette.types import Message, Receive, Scope, Send

from integration.servers import CELLS, COVERING, Cell, bare, wrapped
from integration.serving import Peer
from mcp_sessions.client import ClientSessions, NoAnswer, Refused

from .peers import Log, Served, in_process, peer, served

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
        assert set(server.log.carried("tools/call")) == ids
        assert len(server.log.sent("sessions/create")) == 1
        assert {*server.log.carried("sessions/delete")} == ids
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
@pytest.mark.parametrize(
    ("conversations", "calls"), [(20, 4), pytest.param(50, 20, marks=pytest.mark.nightly)], ids=["80", "1,000"]
)
async def test_of_the_calls_in_many_conversations_none_crosses(conversations: int, calls: int) -> None:
    """With the newest client in the newest era, on a server that costs little and answers in this process."""
    newest = Cell("sdk2", modern=True, stateful=False, json=True)
    async with in_process() as sessions, peer(newest, sessions) as client:
        await converse_at_once(sessions, client, conversations, calls)


# --- one session is created, and `on_create` runs once, whatever fails -----------------------------------

FAILURES: dict[str, tuple[int, bytes, bytes]] = {
    "error": (200, b"application/json", b'{"jsonrpc":"2.0","id":%b,"error":{"code":-32603,"message":"not now"}}'),
    "lost": (200, b"text/event-stream", b": \n\n"),  # the connection is closed in the middle of the answer
    "404": (404, b"text/plain", b""),
    "500": (500, b"text/plain", b""),
}
FEW = [cell for cell in CELLS if not (cell.stateful or cell.json)]


@asynccontextmanager
async def failing_once(cell: Cell, method: str, how: str) -> AsyncIterator[tuple[Served, list[object]]]:
    """The small server, which fails the first request of a method, and the sessions that were created on it."""
    created, methods = list[object](), [method]
    app = wrapped(cell, on_create=lambda *session: created.append(session), transport="auto")

    async def front(scope: Scope, receive: Receive, send: Send) -> None:
        waiting = [await receive()]
        message = json.loads(waiting[0].get("body") or b"{}")

        async def again() -> Message:
            return waiting.pop() if waiting else await receive()

        if message.get("method") not in methods:
            await app(scope, again, send)
            return
        methods.clear()
        status, kind, body = FAILURES[how]
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", kind)]})
        body = body.replace(b"%b", json.dumps(message["id"]).encode())
        await send({"type": "http.response.body", "body": body, "more_body": how == "lost"})

    async with served(cell, lambda _: front) as server:
        yield server, created


@needs("mcp>=2")
@pytest.mark.parametrize("how", ["404", "500"])
@pytest.mark.parametrize("cell", [cell for cell in FEW if cell.modern], ids=str)
async def test_a_refused_discovery(cell: Cell, how: str) -> None:
    """The client falls back to the handshake, which declares sessions: no transport session is made beside ours."""
    async with failing_once(cell, "server/discover", how) as (server, created):
        async with peer(cell, server.sessions()) as client:
            assert [await client.tool("count") for _ in range(2)] == ["1", "2"]
        assert len(created) == 1


@pytest.mark.parametrize("how", ["error", "lost"])
@pytest.mark.parametrize("cell", FEW, ids=str)
async def test_a_connection_that_is_lost_in_the_first_creation(cell: Cell, how: str) -> None:
    """The call fails that needed it, nothing is sent again by itself, and the next call begins the session."""
    async with failing_once(cell, "sessions/create", how) as (server, created):
        async with peer(cell, server.sessions(timeout=0.5)) as client:
            # SDK 1.x says nothing of a connection that is lost.
            with pytest.raises((Refused, NoAnswer), match=r"sessions/create was (refused|not answered)"):
                await client.tool("count")
            assert created == []
            assert [await client.tool("count") for _ in range(2)] == ["1", "2"]
        assert len(created) == 1
