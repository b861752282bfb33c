"""`current_session()` in every kind of handler of every framework in every mode."""

import asyncio
import contextvars
import json
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from clients import INITIALIZE, RealClient
from sniffio import current_async_library

from mcp_sessions import DataError, Session, require_session
from mcp_sessions.telemetry import SessionLogFilter

from .servers import CELLS, COVERING, ERAS, FRAMEWORKS, STATEFUL, Cell, connected, made, running

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

# Each has variables and threads of its own.
both_backends = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])


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
@pytest.mark.parametrize("cell", COVERING, ids=str)
async def test_overlapping_requests_keep_their_own_session(cell: Cell) -> None:
    """Those of one client, and of two whose requests have the same ids."""
    async with running(cell) as server:
        clients = [await server.connected(), await server.connected()]
        turns = [(one, held) for one in clients for held in (await one.create(), await one.create(), None)]
        own = [await client.call("whoami", held) for client, held in turns]

        async def hold(client: RealClient, held: dict[str, str] | None, ref: str) -> None:
            assert await client.call("hold", held, name="any") == f"{ref} {ref}"

        async with anyio.create_task_group() as tasks:
            for (client, held), ref in zip(turns, own, strict=True):
                tasks.start_soon(hold, client, held, ref)
            await server.hall.filled(6)
            server.hall.open()
    assert len(set(own)) == 5


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


# --- `session.data.sync` in plain functions, and what it says where it cannot wait ---------------------

EXPECTED = [3, ["x", "y"], "none", None]


def notebook(session: Session | None = None) -> str:
    """Use every method, in a plain function."""
    session = session or require_session()
    data = session.data.sync
    assert repr(data) == f"<Data of {session.ref}>"
    data.set("a", 1)
    data.update("list", lambda kept: [*kept, "x"], default=[])
    with pytest.raises(DataError, match="ttl must be more than 0"):
        data.set("b", "short", ttl=0)
    data.set("b", "short", ttl=60)
    data.delete("b")
    return json.dumps(
        [data.increment("a", 2), data.update("list", lambda kept: [*kept, "y"]), data.get("b", "none"), data.get("c")]
    )


async def notebook_in_a_thread() -> str:
    return await anyio.to_thread.run_sync(notebook)


async def notebook_in_a_copied_context() -> str:
    """In a pool's thread that has the context, from another thread than the event loop's, which must stay free."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(contextvars.copy_context().run, notebook)
        return await anyio.to_thread.run_sync(future.result)


async def notebook_in_a_plain_thread() -> str:
    """In a thread that was given the session alone."""
    session, found = require_session(), list[str]()
    thread = threading.Thread(target=lambda: found.append(notebook(session)))
    thread.start()
    await anyio.to_thread.run_sync(thread.join)
    return found[0]


async def notebook_in_an_event_loop_s_thread() -> str:
    """In a thread that runs an event loop of its own."""

    async def other() -> str:
        return notebook()

    return await anyio.to_thread.run_sync(anyio.run, other)


async def notebook_in_the_loop_s_own_way() -> str:
    if current_async_library() == "trio":
        import trio

        return await trio.to_thread.run_sync(notebook)
    assert await asyncio.get_running_loop().run_in_executor(None, contextvars.copy_context().run, notebook)
    await require_session().data.delete("a")
    await require_session().data.delete("list")
    return await asyncio.to_thread(notebook)


IN_THREADS = [
    notebook_in_a_thread,
    notebook_in_a_copied_context,
    notebook_in_a_plain_thread,
    notebook_in_an_event_loop_s_thread,
    notebook_in_the_loop_s_own_way,
]


async def misused() -> str:
    with pytest.raises(DataError, match=r"On the event loop, await session\.data instead") as refused:
        require_session().data.sync.get("a")
    return str(refused.value)


@both_backends
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("store", ["memory:", "sqlite:{}/sessions.db"])
async def test_a_plain_function_uses_session_data(framework: str, store: str, tmp_path: Path) -> None:
    """Where the framework calls it in a worker thread, or the tool does; SDK 1.x learns why not, and what to do."""

    def notes() -> str:
        return notebook()

    app = made(Cell(framework), notes, *IN_THREADS, misused)
    async with connected(app, modern=max(ERAS), store=store.format(tmp_path)) as client:
        answer = await client.call("notes", await client.create())
        if framework == "sdk1":
            assert "SDK 1.x does with tools, make yours `async def`" in answer
        else:
            assert json.loads(answer) == EXPECTED
        for tool in IN_THREADS:
            assert json.loads(await client.call(tool.__name__, await client.create())) == EXPECTED
        held = await client.create()
        assert "only worker threads may use it" in await client.call("misused", held)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_thread_that_outlives_the_event_loop_learns_so(backend: str) -> None:
    """Rather than waiting for ever."""
    sessions: list[Session] = []

    async def keep() -> str:
        sessions.append(require_session())
        return "kept"

    async def serve() -> None:
        async with connected(made(Cell(FRAMEWORKS[0]), keep), modern=max(ERAS)) as client:
            await client.call("keep", await client.create())

    anyio.run(serve, backend=backend)
    with (
        ThreadPoolExecutor(1) as pool,
        pytest.raises(DataError, match="event loop of the session's request, which has"),
    ):
        pool.submit(sessions[0].data.sync.get, "a").result()
