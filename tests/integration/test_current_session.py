"""`current_session()` in every kind of handler of every framework in every mode."""

from __future__ import annotations

import logging
from typing import Any, Final

import anyio
import pytest
from clients import INITIALIZE

from mcp_sessions.telemetry import SessionLogFilter

from .servers import CELLS, STATEFUL, Cell, running

HANDLERS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "async-tool": ("tools/call", {"name": "whoami", "arguments": {}}),
    "sync-tool": ("tools/call", {"name": "whoami_sync", "arguments": {}}),
    "resource": ("resources/read", {"uri": "session://me"}),
    "prompt": ("prompts/get", {"name": "who"}),
    "completion": (
        "completion/complete",
        {"ref": {"type": "ref/prompt", "name": "who"}, "argument": {"name": "x", "value": ""}},
    ),
}

both_backends = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])  # each has context variables of its own


@both_backends
@pytest.mark.parametrize("cell", CELLS, ids=str)
async def test_each_handler_sees_the_session_of_its_request(cell: Cell) -> None:
    async with running(cell) as server:
        client = await server.connected()
        first, second = await client.create(), await client.create()
        own = [await client.call("whoami", held) for held in (first, second)]
        assert len({*own, "nobody"}) == 3
        for handler, (method, params) in HANDLERS.items():
            turns: list[dict[str, str] | None] = [first, second, None, second, first]
            seen = [(await client.send(method, params, session=held)).text for held in turns]
            assert seen == [*own, "nobody", *reversed(own)], handler


@both_backends
@pytest.mark.parametrize("cell", CELLS, ids=str)
async def test_overlapping_requests_keep_their_own_session(cell: Cell) -> None:
    async with running(cell) as server:
        client = await server.connected()
        sessions: list[dict[str, str] | None] = [await client.create() for _ in range(3)]
        own = [await client.call("whoami", held) for held in sessions]
        seen: dict[int, str] = {}

        async def hold(index: int, held: dict[str, str] | None) -> None:
            seen[index] = await client.call("hold", held, name=str(index))

        async with anyio.create_task_group() as tasks:
            for index, held in enumerate([*sessions, None]):
                tasks.start_soon(hold, index, held)
            await server.hall.filled(4)
            server.hall.open()
    assert [seen[index] for index in range(4)] == [*(f"{one} {one}" for one in own), "nobody nobody"]


@both_backends
@pytest.mark.parametrize("cell", STATEFUL, ids=str)
async def test_the_session_of_a_handshake_does_not_stick_to_its_connection(
    cell: Cell, caplog: pytest.LogCaptureFixture
) -> None:
    """Older servers start a connection's task in `initialize`; its log lines do not name that request's session."""
    caplog.set_level(logging.DEBUG)
    caplog.handler.addFilter(SessionLogFilter())
    async with running(cell) as server:
        before, client = await server.connected(), server.client()
        first, second = await before.create(), await before.create()
        shaken = await client.send("initialize", INITIALIZE, session=first)
        client.own["mcp-session-id"] = shaken.headers[b"mcp-session-id"].decode()
        await client.send("notifications/initialized", id=None)
        caplog.clear()
        own = [await client.call("whoami", held) for held in (second, None)]
    logged = {str(record.__dict__["session"]) for record in caplog.records if record.name.startswith("mcp")}
    assert own[1] == "nobody"
    assert logged <= {own[0], "-"}
