"""Event streams: events are passed on at once, and a client that leaves breaks nothing."""

from __future__ import annotations

import json

import pytest

from .servers import STREAMING, Cell, running
from .wire import SESSION_KEY

pytestmark = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])  # each has a cancellation of its own
streaming = pytest.mark.parametrize("cell", STREAMING, ids=str)
PROGRESS = {"name": "progress", "arguments": {}, "_meta": {"progressToken": "p"}}


def progress_of(event: str) -> float:
    data = next(line[5:] for line in event.splitlines() if line.startswith("data:") and line[5:].strip())
    return float(json.loads(data)["params"]["progress"])


@pytest.mark.parametrize("with_session", [True, False], ids=["session", "no-session"])
@streaming
async def test_progress_arrives_while_the_tool_works(cell: Cell, with_session: bool) -> None:
    """The first notification arrives before the tool goes on; the others follow in order, then the result."""
    async with running(cell) as server:
        client = await server.connected()
        held = await client.create() if with_session else None
        async with client.under_way("tools/call", PROGRESS, held) as exchange:
            assert progress_of(await exchange.next_event()) == 1
            await server.hall.filled(1)
            assert server.hall.left == []
            server.hall.open()
            messages = (await exchange.reply()).events
    assert [message["params"]["progress"] for message in messages[:-1]] == [2, 3]
    assert SESSION_KEY not in json.dumps(messages[:-1])
    assert (SESSION_KEY in messages[-1]["result"].get("_meta", {})) is with_session


@streaming
async def test_a_client_that_leaves_midway_breaks_nothing(cell: Cell) -> None:
    """A stream closed during a call ends that request alone; its session and the server go on."""
    async with running(cell) as server:
        client = await server.connected()
        held = await client.create()
        async with client.under_way("tools/call", PROGRESS, held) as exchange:
            await exchange.next_event()
            await server.hall.filled(1)
        if cell.modern:
            assert server.hall.left == ["progress"]  # in this era a client cancels by closing the stream
        server.hall.open()
        assert await client.call("count", held) == "1"
        assert await (await server.connected()).call("count", held) == "2"
