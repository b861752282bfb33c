"""Event streams: nothing is held back on the way out, and a client that leaves breaks nothing."""

from __future__ import annotations

import json

import pytest

from .servers import STREAMING, Cell, running
from .wire import SESSION_KEY

streaming = pytest.mark.parametrize("cell", STREAMING, ids=str)
PROGRESS = {"name": "progress", "arguments": {}, "_meta": {"progressToken": "p"}}


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Both: context variables and cancellation are each backend's own."""
    backend: str = request.param
    return backend


def progress_of(event: str) -> float:
    """The progress that a notification tells."""
    data = next(line[5:] for line in event.splitlines() if line.startswith("data:") and line[5:].strip())
    return float(json.loads(data)["params"]["progress"])


@pytest.mark.parametrize("with_session", [True, False], ids=["session", "no-session"])
@streaming
async def test_progress_arrives_while_the_tool_still_works(cell: Cell, with_session: bool) -> None:
    """The first notification is with the client before the tool goes on; the rest follow in order, then the result."""
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
    """A stream closed in the middle of a call ends that request alone; its session and its server go on."""
    async with running(cell) as server:
        client = await server.connected()
        held = await client.create()
        async with client.under_way("tools/call", PROGRESS, held) as exchange:
            await exchange.next_event()
            await server.hall.filled(1)
        if cell.modern:
            assert server.hall.left == ["progress"]  # there, closing the stream is how a client cancels
        server.hall.open()
        assert await client.call("count", held) == "1"
        assert await (await server.connected()).call("count", held) == "2"
