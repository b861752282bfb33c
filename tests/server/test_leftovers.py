"""What a request leaves behind: no record of a session that did not begin, few questions, and no reference cycle."""

import gc
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from apps import Server, sessions
from clients import START, Client, call, http
from failing import Failing
from sources import claims_of
from stateful import Stateful

from mcp_sessions import Session
from mcp_sessions._errors import StoreUnavailable
from mcp_sessions._server import minting
from mcp_sessions._session.claims import AUDIENCE
from mcp_sessions.stores import MemoryStore, Record, SessionStatus, SQLiteStore, Store
from mcp_sessions.telemetry import Inspector
from mcp_sessions.testing._contract import status_in


class LostAnswer:
    """A store that records a session, at once or later, and whose answer is lost."""

    def __init__(self, store: Store, *, is_late: bool) -> None:
        self.store, self.is_late = store, is_late
        self.records: list[Record] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    async def register(self, record: Record, **options: Any) -> None:
        self.records.append(record)
        if not self.is_late:
            await self.store.register(record, **options)
        raise StoreUnavailable("store_timeout")


@pytest.mark.parametrize("is_late", [False, True], ids=["at once", "late"])
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_registration_without_answer_leaves_no_record(kind: str, is_late: bool, tmp_path: Path) -> None:
    """Also if the store carries it out after it was taken back; `on_end` never runs for it."""
    store: Store = MemoryStore() if kind == "memory" else SQLiteStore(str(tmp_path / "sessions.db"))
    lost = LostAnswer(store, is_late=is_late)
    app = sessions(Server(), store=lost, tracked=True, on_end=lambda session, reason: None)
    runtime = app._runtime
    runtime.terminator = replace(runtime.terminator, pause=0)
    assert (await Client(app).send("sessions/create")).status == 503
    (record,) = lost.records
    with anyio.fail_after(3):
        while (await status_in(store, claims_of(record.ref, START))) is not SessionStatus.ENDED:
            await checkpoint()
    if is_late:
        await store.register(record)
    assert await store.get(record.ref) is None
    assert await store.claim_ended(audience=AUDIENCE, idle_timeout=None, lease=60, limit=10) == []
    await store.close()


async def test_cookie_session_that_is_hung_elsewhere_costs_few_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another worker waits for it, longer and longer between two looks."""
    pauses: list[float] = []
    inside = anyio.Event()

    async def on_create(session: Session, params: Any, scope: Any) -> None:
        inside.set()
        await anyio.sleep_forever()

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if sum(pauses) > 8:
            await anyio.sleep_forever()

    store = Failing()
    here, there = (Client(sessions(Server(), store=store, on_create=on_create)) for _ in range(2))
    cookie = (await here.send("server/discover")).cookie
    with anyio.fail_after(3):
        async with anyio.create_task_group() as group:
            group.start_soon(partial(here.tool, "whoami", cookie))
            await inside.wait()
            monkeypatch.setattr(minting, "_sleep", sleep, raising=False)
            group.start_soon(partial(there.tool, "whoami", cookie))
            while sum(pauses) <= 8:
                await checkpoint()
            group.cancel_scope.cancel()
    assert len(pauses) < 20


async def draft(client: Client) -> Callable[[], Awaitable[object]]:
    session = await client.create()
    return partial(client.tool, "whoami", session=session)


async def refused(client: Client) -> Callable[[], Awaitable[object]]:
    return partial(client.tool, "whoami", session={"sessionId": "x"})


async def by_header(client: Client) -> Callable[[], Awaitable[object]]:
    header = await client.initialize()
    return partial(client.tool, "whoami", header)


async def delete(client: Client) -> Callable[[], Awaitable[object]]:
    async def once() -> None:
        await call(client.app, http("DELETE", headers=[await client.initialize()]))

    return once


async def get(client: Client) -> Callable[[], Awaitable[object]]:
    header = await client.initialize()
    return lambda: call(client.app, http("GET", headers=[header]))


async def create(client: Client) -> Callable[[], Awaitable[object]]:
    return client.create


KINDS: dict[str, tuple[Callable[[Client], Awaitable[Callable[[], Awaitable[object]]]], Any, dict[str, Any]]] = {
    "draft, JSON": (draft, Server, {}),
    "draft, events": (draft, partial(Server, sse=True), {}),
    "refused": (refused, Server, {}),
    "refused, recorded": (refused, Server, {"inspector": "Inspector"}),
    "created": (create, Server, {}),
    "header": (by_header, Server, {}),
    "DELETE": (delete, Server, {}),
    "GET": (get, Server, {}),
    "bridged": (by_header, Stateful, {"bridge": True}),
    "bridged, events": (by_header, partial(Stateful, sse=True), {"bridge": True}),
    "bridged, refused": (refused, Stateful, {"bridge": True}),
    "bridged, DELETE": (delete, Stateful, {"bridge": True}),
}


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("kind", KINDS)
async def test_request_leaves_no_reference_cycle(kind: str) -> None:
    """What one holds is free at once, and does not wait for the garbage collector."""
    prepare, server, options = KINDS[kind]
    given = {name: Inspector() if value == "Inspector" else value for name, value in options.items()}
    send = await prepare(Client(sessions(server(), **given), modern=False))
    for _ in range(3):
        await send()
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        await send()
        gc.collect()
        ours = [one for one in gc.garbage if type(one).__module__.startswith("mcp_sessions")]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert ours == []


async def test_registration_of_offered_session_without_answer_is_taken_back() -> None:
    """Without an end, since its client may begin it later by the same cookie."""
    lost = LostAnswer(MemoryStore(), is_late=False)
    client = Client(sessions(Server(), store=lost, tracked=True))
    cookie = (await client.send("server/discover")).cookie
    assert (await client.tool("whoami", cookie)).status == 503
    (record,) = lost.records
    assert await lost.store.get(record.ref) is None
    assert await status_in(lost.store, claims_of(record.ref, START)) is not SessionStatus.ENDED
