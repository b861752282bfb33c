"""The frameworks' own unchanged clients over real HTTP, and calls that are under way: event streams, leaving, the end.

Calls that wait are made by those clients, which wait for ever unless the end of a stream answers them.
"""

import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest
from clients import OFFERED, SESSION_KEY

from .event_store import KEPT, TwoWorkers, with_events
from .servers import CELLS, COVERING, SDK, STATEFUL, STREAMING, Cell, Hall, bare, running, wrapped
from .serving import peer, serving


@pytest.mark.parametrize("cell", CELLS, ids=str)
async def test_without_a_session_a_client_gets_the_servers_own_bytes(cell: Cell) -> None:
    """Its capabilities alone have ours beside them."""
    hello, through = await without_session(cell, wrapped)
    own_hello, own = await without_session(cell, bare)
    assert through == own
    own_hello["capabilities"]["sessions"] = {}
    own_hello["capabilities"].setdefault("experimental", {})["sessions"] = {"required": "never", **OFFERED}
    assert hello == own_hello


async def without_session(cell: Cell, make: Any) -> tuple[dict[str, Any], list[tuple[int, dict[bytes, bytes], bytes]]]:
    """Send the requests of a client that knows nothing of sessions; the handshake's result, and what came back."""
    async with running(cell, make) as server:
        client = server.client()
        hello = (await client.connect()).result
        answers = [
            await client.tool("whoami"),
            await client.tool("nothing"),
            await client.send("tools/list"),
            await client.send("resources/read", {"uri": "session://me"}),
            await client.send("prompts/get", {"name": "who"}),
            await client.send("nothing/at-all"),
        ]
    whole = [answer.whole for answer in answers]
    for _, headers, _ in whole:
        headers.pop(b"mcp-session-id", None)  # the server's own, new in every connection
    return hello, whole


# --- calls under way -----------------------------------------------------------------------------


@pytest.mark.parametrize("cell", COVERING, ids=str)
async def test_a_cancelled_call_leaves_the_session_alive(cell: Cell) -> None:
    """The session survives a cancelled call, and where the client notifies the server the tool itself stops."""
    hall = Hall()
    async with serving(wrapped(cell, hall)) as url, peer(cell, url) as client:
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


def progress_of(event: str) -> float:
    data = next(line[5:] for line in event.splitlines() if line.startswith("data:") and line[5:].strip())
    return float(json.loads(data)["params"]["progress"])


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])  # each has a cancellation of its own
@pytest.mark.parametrize("cell", STREAMING, ids=str)
async def test_progress_arrives_while_the_tool_works(cell: Cell) -> None:
    """And a client that leaves then breaks nothing: in the modern era it cancels by closing the stream."""
    async with running(cell) as server:
        client = await server.connected()
        held = await client.create()
        async with client.under_way("tools/call", PROGRESS, session=held) as exchange:
            await exchange.next_event()
            await server.hall.filled(1)
        assert server.hall.left == ["progress"] * cell.modern
        async with client.under_way("tools/call", PROGRESS, session=held) as exchange:
            assert progress_of(await exchange.next_event()) == 1
            await server.hall.filled(2)
            server.hall.open()
            messages = (await exchange.ended()).events
        assert await client.call("count", held) == "1"
        assert await (await server.connected()).call("count", held) == "2"
    assert [message["params"]["progress"] for message in messages[:-1]] == [1, 2, 3]
    assert SESSION_KEY not in json.dumps(messages[:-1])
    assert SESSION_KEY in messages[-1]["result"]["_meta"]


@pytest.mark.parametrize(
    ("cell", "workers"), [*((cell, 1) for cell in STREAMING), (STREAMING[0], 2), (STREAMING[-1], 2)], ids=str
)
async def test_a_waiting_call_ends_with_its_session(cell: Cell, workers: int, tmp_path: Path) -> None:
    """It raises when its session is deleted while the tool runs, on any worker; another session goes on."""
    hall, heard = Hall(), anyio.Event()
    options: dict[str, Any] = {"store": f"sqlite:{tmp_path}/sessions.db", "store_timeout": 60}  # on a slow machine

    async def hear(progress: float) -> None:
        """Which comes first, since newer servers open a stream with the first event."""
        heard.set()

    async def wait() -> None:
        with pytest.raises(Exception, match="Session not found"):
            await clients[0].tool("progress", held, hear=hear)

    async with AsyncExitStack() as stack:
        apps = [wrapped(cell, hall, **options) for _ in range(workers)]
        urls = [await stack.enter_async_context(serving(app)) for app in apps]
        clients = [await stack.enter_async_context(peer(cell, url)) for url in urls]
        held = await clients[0].create()
        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await heard.wait()
            await hall.filled(1)
            await clients[-1].delete(held)
        hall.open()  # the tool may still run, and its result is dropped
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


@pytest.mark.parametrize("bridge", [False, True], ids=["", "bridge"])
async def test_official_client_resumes_through_another_worker(bridge: bool, tmp_path: Path) -> None:
    """It waits for the answer, and the worker that it comes back to knows its event id by the signature alone."""
    cell, hall, answers = Cell(SDK, stateful=True), Hall(), list[str]()
    workers = TwoWorkers(cell, hall, bridge=bridge, store=f"sqlite:{tmp_path}/sessions.db", store_timeout=60)

    async def poll() -> None:
        result = await client.call("poll", {}, meta={SESSION_KEY: held})
        answers.append(result.content[0].text)

    async with serving(workers) as url, peer(cell, url) as client:
        held = await client.create()
        async with anyio.create_task_group() as group:
            group.start_soon(poll)
            await workers.resumed.wait()
            hall.open()
    assert answers == ["1"]
    assert all(event_id.startswith(b"v1.") for event_id in workers.event_ids)


@pytest.mark.parametrize("cell", STATEFUL, ids=str)
async def test_parallel_notifications_with_a_dead_session_are_all_answered(cell: Cell) -> None:
    """Each is refused once the server was asked, which awaits one request of each id at a time."""
    async with running(cell) as server:
        client, statuses = await server.connected(), list[int]()
        held = await client.create()
        await client.delete(held)

        async def notify() -> None:
            statuses.append((await client.send("notifications/progress", id=None, session=held)).status)

        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(notify)
        assert statuses == [400] * 20
