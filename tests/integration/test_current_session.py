"""`current_session()` with no argument, in every kind of handler of every framework in every mode.

The matrix is whole by construction: its cells come from a table by the installed versions, no cell
can be skipped, and the last test counts those that ran.
"""

from __future__ import annotations

import logging
from typing import Any, Final

import anyio
import pytest

from mcp_sessions.telemetry import SessionLogFilter

from .servers import CELLS, FRAMEWORKS, STATEFUL, Cell, running
from .wire import INITIALIZE, Held

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

_MODES: Final = {f"{mode}-{form}" for mode in ("stateful", "stateless") for form in ("json", "sse")}
EXPECTED: Final = {
    ("sdk2", "fastmcp4"): {
        f"{name}-{era}-{mode}" for name in ("sdk2", "fastmcp4") for era in ("legacy", "modern") for mode in _MODES
    },
    ("sdk1", "fastmcp3"): {f"{name}-legacy-{mode}" for name in ("sdk1", "fastmcp3") for mode in _MODES},
}

RAN: Final[set[str]] = set()


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Both: context variables and cancellation are each backend's own."""
    backend: str = request.param
    return backend


@pytest.mark.parametrize("cell", CELLS, ids=str)
async def test_each_of_two_sessions_of_one_client_sees_itself(cell: Cell) -> None:
    """In every kind of handler two sessions over one connection see their own, and a request without one sees none."""
    async with running(cell) as server:
        client = await server.connected()
        first, second = await client.create(), await client.create()
        own = [await client.call("whoami", held) for held in (first, second)]
        assert len({*own, "nobody"}) == 3
        for handler, (method, params) in HANDLERS.items():
            turns: list[Held | None] = [first, second, None, second, first]
            seen = [(await client.request(method, params, held)).text for held in turns]
            assert seen == [*own, "nobody", *reversed(own)], handler
    RAN.add(str(cell))


@pytest.mark.parametrize("cell", CELLS, ids=str)
async def test_overlapping_requests_keep_their_own_session(cell: Cell) -> None:
    """Calls of several sessions, all inside the handler at once, each see their own before and after the wait."""
    async with running(cell) as server:
        client = await server.connected()
        sessions: list[Held | None] = [await client.create() for _ in range(3)]
        own = [await client.call("whoami", held) for held in sessions]
        seen: dict[int, str] = {}

        async def hold(index: int, held: Held | None) -> None:
            seen[index] = await client.call("hold", held, name=str(index))

        async with anyio.create_task_group() as tasks:
            for index, held in enumerate([*sessions, None]):
                tasks.start_soon(hold, index, held)
            await server.hall.filled(4)
            server.hall.open()
    assert [seen[index] for index in range(4)] == [*(f"{one} {one}" for one in own), "nobody nobody"]


@pytest.mark.parametrize("cell", STATEFUL, ids=str)
async def test_the_session_of_a_handshake_does_not_stick_to_its_connection(
    cell: Cell, caplog: pytest.LogCaptureFixture
) -> None:
    """Older servers start the task of a connection in `initialize`, and log from it where no request is known yet."""
    caplog.set_level(logging.DEBUG)
    caplog.handler.addFilter(SessionLogFilter())
    async with running(cell) as server:
        before, client = await server.connected(), server.client()
        first, second = await before.create(), await before.create()
        shaken = await client.request("initialize", INITIALIZE, first)
        client.headers["mcp-session-id"] = shaken.headers["mcp-session-id"]
        await client.notify("notifications/initialized")
        caplog.clear()
        own = [await client.call("whoami", held) for held in (second, None)]
    said = {str(record.__dict__["session"]) for record in caplog.records if record.name.startswith("mcp")}
    assert own[1] == "nobody"
    assert said <= {own[0], "-"}


def test_the_table_of_cells_is_what_this_environment_must_run() -> None:
    """Every mode of both installed frameworks is there, and an unknown version of either is an error."""
    assert {str(cell) for cell in CELLS} == EXPECTED[FRAMEWORKS]


def test_every_cell_that_was_selected_ran(request: pytest.FixtureRequest) -> None:
    """No cell of the matrix was skipped or left out on the way."""
    name = test_each_of_two_sessions_of_one_client_sees_itself.__name__
    tests = [item for item in request.session.items if isinstance(item, pytest.Function) and item.originalname == name]
    assert {str(test.callspec.params["cell"]) for test in tests} == RAN
