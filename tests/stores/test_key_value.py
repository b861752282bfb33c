"""Data in a key-value store that knows nothing of sessions; what it keeps of the contract is in `test_contract.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from apps import Server, sessions
from clients import START, Client, Clock
from key_value.aio.stores.memory import MemoryStore as Entries

from mcp_sessions import Session
from mcp_sessions._session.data import Namespace
from mcp_sessions.stores._base import Reach
from mcp_sessions.stores._key_value import COLLECTION, GRACE, KeyValueStore
from mcp_sessions.stores._memory import MemoryStore

SHELF = Namespace("ses_one", START + 60, 1000)


@pytest.fixture
def anyio_backend() -> str:
    """The library knows asyncio alone."""
    return "asyncio"


@pytest.fixture
def entries() -> Entries:
    return Entries()


async def note(session: Session | None, arguments: dict[str, Any]) -> Any:
    """A tool that keeps what it is told, and says all of it."""
    assert session is not None
    return await session.data.update("notes", lambda notes: [*notes, arguments["text"]], default=[])


async def test_sessions_go_on_where_another_process_stopped(entries: Entries, tmp_path: Path) -> None:
    """With the data in the one store, and what has ended in the other."""
    stores = [KeyValueStore(entries, store=f"sqlite:{tmp_path / 'sessions.db'}", timeout=5) for _ in range(2)]
    one, other = (Client(sessions(Server(note=note), store=store, store_timeout=5)) for store in stores)
    held = await one.create()
    assert (await one.tool("note", session=held, text="one")).result["content"] == ["one"]
    assert (await other.tool("note", session=held, text="two")).result["content"] == ["one", "two"]
    await other.delete(held)
    assert (await one.tool("note", session=held, text="late")).error["message"] == "Session not found"
    for store in stores:
        await store.close()


async def test_an_ended_session_leaves_nothing(entries: Entries) -> None:
    """Its entry goes with it."""
    client = Client(sessions(Server(note=note), store=KeyValueStore(entries)))
    held = await client.create()
    await client.tool("note", session=held, text="one")
    assert len(await entries.keys(COLLECTION)) == 1
    await client.delete(held)
    assert await entries.keys(COLLECTION) == []


async def test_what_is_forgotten_goes_by_itself(entries: Entries) -> None:
    """Some time after the session would have ended, so that `on_end` can still read it."""
    store = KeyValueStore(entries, store=MemoryStore(clock=Clock()), clock=Clock())
    await store.write(SHELF, "a", b"1")
    _, ttl = await entries.ttl(SHELF.owner, collection=COLLECTION)
    assert ttl == pytest.approx(60 + GRACE, abs=30)


async def test_nothing_is_put_where_nothing_changes(entries: Entries) -> None:
    """A swap that comes too late, and the removal of what is not there."""
    store = KeyValueStore(entries, store=MemoryStore(clock=Clock()), clock=Clock())
    assert not await store.compare_and_swap(SHELF, "a", b"1", b"2")
    await store.write(SHELF, "a", None)
    assert await entries.keys(COLLECTION) == []


async def test_a_change_of_another_process_at_the_same_moment_may_be_lost(entries: Entries) -> None:
    """What this store cannot promise: another process has changed the entry between our look and our change."""
    beside = MemoryStore(clock=Clock())
    other = KeyValueStore(entries, store=beside, clock=Clock())

    class Slow(Entries):
        """The same entries, behind a network that is slow to tell."""

        async def get(self, key: str, *, collection: str | None = None) -> dict[str, Any] | None:
            seen: dict[str, Any] | None = await entries.get(key, collection=collection)
            await other.add(SHELF, "b", 1)
            return seen

        async def put(self, key: str, value: Any, **more: Any) -> None:
            await entries.put(key, value, **more)

    assert await KeyValueStore(Slow(), store=beside, clock=Clock()).add(SHELF, "a", 1) == 1
    assert [await other.read(SHELF, name) for name in ("a", "b")] == [b"1", None]


def test_it_reaches_as_far_as_the_store_beside_it(entries: Entries, tmp_path: Path) -> None:
    """So that workers that could not know what ended are found out at the start."""
    assert KeyValueStore(entries).reach is Reach.PROCESS
    assert KeyValueStore(entries, store=f"sqlite:{tmp_path / 'sessions.db'}").reach is Reach.MACHINE
