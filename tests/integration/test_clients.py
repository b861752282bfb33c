"""The frameworks' own clients, unchanged, over real HTTP: what they can do with sessions today."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from clients import OFFERED

from .servers import CELLS, DEADLINE, STREAMING, Cell, Hall, wrapped
from .serving import Peer, peer, serving
from .wire import MODERN, Held

every_cell = pytest.mark.parametrize("cell", CELLS, ids=str)
streaming = pytest.mark.parametrize("cell", STREAMING, ids=str)


@pytest.fixture
def anyio_backend() -> str:
    """Uvicorn runs on asyncio alone."""
    return "asyncio"


@asynccontextmanager
async def connected(cell: Cell, hall: Hall | None = None) -> AsyncIterator[Peer]:
    """The cell's own client of the small server."""
    with anyio.fail_after(DEADLINE):
        async with serving(wrapped(cell, hall)) as url, peer(cell, url) as client:
            yield client


@every_cell
async def test_an_unchanged_client_holds_several_sessions(cell: Cell) -> None:
    """Created, used with state, and ended through the client's own calls, each session apart from the other."""
    async with connected(cell) as client:
        first, second = await client.create(), await client.create()
        assert [await client.tool("count", held) for held in (first, second, first)] == ["1", "1", "2"]
        assert await client.tool("whoami", first) != await client.tool("whoami", second)
        assert await client.tool("whoami") == "nobody"
        await client.delete(first)
        with pytest.raises(Exception, match="Session not found"):
            await client.tool("whoami", first)
        assert await client.tool("count", second) == "2"


@every_cell
async def test_an_unchanged_client_sees_that_sessions_exist(cell: Cell) -> None:
    """All see `experimental.sessions`; the top-level key is kept by the older clients only."""
    async with connected(cell) as client:
        if cell.modern:
            assert client.session.protocol_version == MODERN
        assert client.capabilities.experimental == {"sessions": {"required": "never", **OFFERED}}
        seen = client.capabilities.model_dump(by_alias=True)
    assert seen.get("sessions") == ({} if cell.framework in {"sdk1", "fastmcp3"} else None)


@every_cell
async def test_parallel_calls_of_one_client_keep_their_session(cell: Cell) -> None:
    """One client has calls of two sessions inside the server at once; each sees its own."""
    hall = Hall()
    seen: dict[str, list[str]] = {}
    async with connected(cell, hall) as client:
        sessions = [await client.create() for _ in range(2)]
        own = [await client.tool("whoami", held) for held in sessions]

        async def hold(whose: str, held: Held) -> None:
            seen.setdefault(whose, []).append(await client.tool("hold", held, name=whose))

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                for whose, held in zip(own, sessions, strict=True):
                    tasks.start_soon(hold, whose, held)
            await hall.filled(6)
            hall.open()
    assert seen == {whose: [f"{whose} {whose}"] * 3 for whose in own}


@streaming
async def test_a_client_hears_of_progress_while_the_tool_works(cell: Cell) -> None:
    """The client's own progress callback runs before the tool goes on."""
    hall, heard, told = Hall(), anyio.Event(), []

    async def hear(progress: float) -> None:
        told.append(progress)
        heard.set()

    async with connected(cell, hall) as client:
        held = await client.create()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: client.tool("progress", held, told=hear))
            await heard.wait()
            await hall.filled(1)
            assert (told, hall.left) == ([1], [])
            hall.open()
    assert told == [1, 2, 3]


@every_cell
async def test_a_call_that_the_client_cancels_leaves_the_session_alive(cell: Cell) -> None:
    """The session goes on after a call that was given up; clients that tell the server stop the tool itself."""
    hall = Hall()
    async with connected(cell, hall) as client:
        held = await client.create()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: client.tool("hold", held, name="given up"))
            await hall.filled(1)
            tasks.cancel_scope.cancel()
        if tells_the_server(cell):
            await hall.emptied()
        hall.open()
        assert await client.tool("count", held) == "1"
        assert await client.tool("count", held) == "2"


def tells_the_server(cell: Cell) -> bool:
    """Whether giving a call up stops the tool: newer clients say so, where the server can find the call."""
    told = cell.framework in {"sdk2", "fastmcp4"}
    return told and (not cell.json if cell.modern else cell.stateful)
