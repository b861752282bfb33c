"""What the frameworks' own unchanged clients can do with sessions over real HTTP, and event streams on the wire."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import pytest
from clients import MODERN, OFFERED, SESSION_KEY, RealClient, lifespan

from .servers import CELLS, COVERING, DEADLINE, STREAMING, Cell, Hall, bare, running, wrapped
from .serving import Peer, peer, serving

every_cell = pytest.mark.parametrize("cell", CELLS, ids=str)
streaming = pytest.mark.parametrize("cell", STREAMING, ids=str)


@asynccontextmanager
async def connected(cell: Cell, hall: Hall | None = None) -> AsyncIterator[Peer]:
    with anyio.fail_after(DEADLINE):
        async with serving(wrapped(cell, hall)) as url, peer(cell, url) as client:
            yield client


@pytest.mark.parametrize("cell", COVERING, ids=str)
async def test_an_unchanged_client_holds_several_sessions(cell: Cell) -> None:
    """It sees that they exist, creates two by its own calls, uses them with separate state, and deletes them."""
    async with connected(cell) as client:
        assert cell.modern == (getattr(client.session, "protocol_version", None) == MODERN)
        assert client.capabilities.experimental == {"sessions": {"required": "never", **OFFERED}}
        first, second = await client.create(), await client.create()
        assert [await client.tool("count", held) for held in (first, second, first)] == ["1", "1", "2"]
        assert await client.tool("whoami", first) != await client.tool("whoami", second)
        assert await client.tool("whoami") == "nobody"
        await client.delete(first)
        with pytest.raises(Exception, match="Session not found"):
            await client.tool("whoami", first)
        assert await client.tool("count", second) == "2"


@pytest.mark.parametrize("cell", COVERING, ids=str)
async def test_a_cancelled_call_leaves_the_session_alive(cell: Cell) -> None:
    """The session survives a cancelled call, and where the client notifies the server the tool itself stops."""
    hall = Hall()
    async with connected(cell, hall) as client:
        held = await client.create()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: client.tool("hold", held, name="given up"))
            await hall.filled(1)
            tasks.cancel_scope.cancel()
        if is_server_notified(cell):
            await hall.emptied()
        hall.open()
        assert await client.tool("count", held) == "1"
        assert await client.tool("count", held) == "2"


def is_server_notified(cell: Cell) -> bool:
    """Whether cancelling a call stops the tool: newer clients notify the server where it can find the call."""
    return cell.framework in {"sdk2", "fastmcp4"} and (not cell.json if cell.modern else cell.stateful)


PROGRESS = {"name": "progress", "arguments": {}, "_meta": {"progressToken": "p"}}
both_backends = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])  # each has a cancellation of its own


def progress_of(event: str) -> float:
    data = next(line[5:] for line in event.splitlines() if line.startswith("data:") and line[5:].strip())
    return float(json.loads(data)["params"]["progress"])


@both_backends
@streaming
async def test_progress_arrives_while_the_tool_works(cell: Cell) -> None:
    async with running(cell) as server:
        client = await server.connected()
        held = await client.create()
        async with client.under_way("tools/call", PROGRESS, session=held) as exchange:
            assert progress_of(await exchange.next_event()) == 1
            await server.hall.filled(1)
            assert server.hall.left == []
            server.hall.open()
            messages = (await exchange.ended()).events
    assert [message["params"]["progress"] for message in messages[:-1]] == [1, 2, 3]
    assert SESSION_KEY not in json.dumps(messages[:-1])
    assert SESSION_KEY in messages[-1]["result"]["_meta"]


@both_backends
@streaming
async def test_a_client_that_leaves_midway_breaks_nothing(cell: Cell) -> None:
    async with running(cell) as server:
        client = await server.connected()
        held = await client.create()
        async with client.under_way("tools/call", PROGRESS, session=held) as exchange:
            await exchange.next_event()
            await server.hall.filled(1)
        if cell.modern:
            assert server.hall.left == ["progress"]  # in this era a client cancels by closing the stream
        server.hall.open()
        assert await client.call("count", held) == "1"
        assert await (await server.connected()).call("count", held) == "2"


# --- beside what the server has itself ---------------------------------------------------------------


WITHOUT_SESSION: Final[list[tuple[str, dict[str, Any]]]] = [
    ("tools/call", {"name": "whoami", "arguments": {}}),
    ("tools/call", {"name": "nothing", "arguments": {}}),
    ("tools/list", {}),
    ("resources/read", {"uri": "session://me"}),
    ("prompts/get", {"name": "who"}),
    ("nothing/at-all", {}),
]


@every_cell
async def test_without_a_session_a_client_gets_the_servers_own_bytes(cell: Cell) -> None:
    """Its capabilities alone have ours beside them."""
    hello, through = await without_session(cell, wrapped(cell))
    own_hello, own = await without_session(cell, bare(cell))
    assert through == own
    own_hello["capabilities"]["sessions"] = {}
    own_hello["capabilities"].setdefault("experimental", {})["sessions"] = {"required": "never", **OFFERED}
    assert hello == own_hello


async def without_session(cell: Cell, app: Any) -> tuple[dict[str, Any], list[tuple[int, dict[bytes, bytes], bytes]]]:
    """Send the requests of a client that knows nothing of sessions; the handshake's result, and what came back."""
    async with lifespan(app):
        client = RealClient(app, modern=cell.modern)
        hello = (await client.connect()).result
        answers = [(await client.send(*asked)).whole for asked in WITHOUT_SESSION]
    for _, headers, _ in answers:
        headers.pop(b"mcp-session-id", None)  # the server's own, new in every connection
    return hello, answers
