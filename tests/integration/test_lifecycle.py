"""The end of a session on real servers: calls that wait for an answer, streams that are open, clients that leave.

Waiting calls are made by the frameworks' own clients, which wait for ever unless the end of a stream answers them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from clients import SESSION_KEY
from starlette.types import ASGIApp

from .event_store import KEPT, with_events
from .servers import DEADLINE, STATEFUL, STREAMING, Cell, Hall, bare, running, wrapped
from .serving import Peer, peer, serving


async def waits_until_deleted(client: Peer, hall: Hall, delete: Callable[[dict[str, str]], Awaitable[None]]) -> str:
    """Delete the session of a waiting call, and return the error that ends the call.

    The tool reports progress first, since newer servers open a stream with the first event.
    """
    held, heard = await client.create(), anyio.Event()
    errors: list[str] = []

    async def hear(progress: float) -> None:
        heard.set()

    async def wait() -> None:
        with pytest.raises(Exception, match="Session not found") as refused:
            await client.tool("progress", held, hear=hear)
        errors.append(str(refused.value))

    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await heard.wait()
            await hall.filled(1)
            await delete(held)
    hall.open()  # the tool may still run, and its result is dropped
    return errors[0]


@pytest.mark.parametrize(
    ("cell", "workers"), [*((cell, 1) for cell in STREAMING), (STREAMING[0], 2), (STREAMING[-1], 2)], ids=str
)
async def test_a_waiting_call_ends_with_its_session(cell: Cell, workers: int, tmp_path: Path) -> None:
    """It raises when its session is deleted while the tool runs, on any worker; another session goes on."""
    hall = Hall()
    options: dict[str, Any] = {"store": f"sqlite:{tmp_path}/sessions.db", "store_timeout": 60}  # on a slow machine
    async with AsyncExitStack() as stack:
        apps = [wrapped(cell, hall, **options) for _ in range(workers)]
        urls = [await stack.enter_async_context(serving(app)) for app in apps]
        clients = [await stack.enter_async_context(peer(cell, url)) for url in urls]
        assert await waits_until_deleted(clients[0], hall, clients[-1].delete)
        assert await clients[0].tool("whoami", await clients[0].create()) != "nobody"


@pytest.mark.parametrize("cell", [cell for cell in STATEFUL if not cell.json], ids=str)
@pytest.mark.parametrize("bridge", [False, True], ids=["", "bridge"])
async def test_a_call_whose_client_was_away_keeps_its_state_and_its_answer(cell: Cell, bridge: bool) -> None:
    """The server runs it to its end; the result comes with the session, once by each way in which that is kept."""
    async with running(cell, make=with_events, bridge=bridge) as server:
        client = await server.connected()
        for held in [await client.create(), *[None] * bridge]:
            assert await client.call("count", held) == "1"
            async with client.under_way("tools/call", {"name": "hold", "arguments": {}}, session=held) as exchange:
                first = await exchange.next_event("id:")
                await server.hall.filled(1)
            server.hall.open()
            await server.hall.emptied()
            last = next(line[3:].strip() for line in first.splitlines() if line.startswith("id:"))
            async with client.resuming(last) as resumed:
                answer = json.loads((await resumed.next_event()).partition("data: ")[2].splitlines()[0])["result"]
            assert answer["content"][0]["text"] == KEPT
            if held is not None:
                held.update(answer["_meta"][SESSION_KEY])
            assert await client.call("count", held) == "3"


@pytest.mark.parametrize("cell", STATEFUL, ids=str)
async def test_parallel_notifications_with_a_dead_session_are_all_answered(cell: Cell) -> None:
    """Each is refused once the server was asked, which awaits one request of each id at a time."""
    async with running(cell) as server:
        client, statuses = await server.connected(), list[int]()
        held = await client.create()
        await client.delete(held)
        message = {
            "jsonrpc": "2.0",
            "method": "notifications/progress",
            "params": {"_meta": {SESSION_KEY: held}},
        }

        async def notify() -> None:
            statuses.append((await client.post(message)).status)

        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(notify)
        assert statuses == [400] * 20


async def cancelled(cell: Cell, app: ASGIApp, hall: Hall, caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the errors that are logged, but for the server's own, when a client cancels a call and leaves.

    It reads the event before that first: SDK 1.x clients log an error for any event that finds them closed.
    """
    heard = anyio.Event()

    async def hear(progress: float) -> None:
        heard.set()

    caplog.clear()
    with anyio.fail_after(DEADLINE):
        async with serving(app) as url:
            async with peer(cell, url) as client, anyio.create_task_group() as group:
                group.start_soon(partial(client.tool, "progress", hear=hear))
                await heard.wait()
                await hall.filled(1)
                group.cancel_scope.cancel()
            hall.open()
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    return [record.getMessage() for record in errors if not record.name.startswith(("mcp.server", "fastmcp.server"))]


@pytest.mark.parametrize("cell", [cell for cell in STREAMING if not cell.modern], ids=str)
async def test_a_client_that_cancels_and_leaves_sees_no_error_of_ours(
    cell: Cell, caplog: pytest.LogCaptureFixture
) -> None:
    """It ends its session while the call still runs, in whose stream nothing is written that it does not expect."""
    alone, behind = Hall(), Hall()
    options: dict[str, Any] = {"bridge": True} if cell.stateful else {"transport": "auto"}
    without_us = await cancelled(cell, bare(cell, alone), alone, caplog)  # FastMCP 4 answers a cancelled call
    assert await cancelled(cell, wrapped(cell, behind, **options), behind, caplog) == without_us
