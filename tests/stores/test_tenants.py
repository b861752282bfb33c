"""One tenant against all: what a principal's data may take, where it is counted, and what a full store says."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from clients import START, Clock

from mcp_sessions._session.claims import Claims
from mcp_sessions._session.data import Namespace
from mcp_sessions.errors import PrincipalDataTooLarge, StoreFull, TooManySessions
from mcp_sessions.stores.base import VALUE_COST, Record, Store
from mcp_sessions.stores.memory import MemoryStore
from mcp_sessions.stores.sqlite import SQLiteStore
from mcp_sessions.testing.contract import revoke

LATER = START + 3600
ALICE, BOB = "alice".ljust(22, "A"), "bob".ljust(22, "A")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=[MemoryStore, SQLiteStore])
def store(request: pytest.FixtureRequest, clock: Clock, tmp_path: Path) -> Store:
    """One so small that a few sessions fill it."""
    if request.param is MemoryStore:
        return MemoryStore(max_sessions=3, clock=clock)
    return SQLiteStore(tmp_path / "sessions.db", max_bytes=1 << 18, clock=clock)


def session(name: str, subject: str | None = ALICE) -> Claims:
    jti = name.ljust(22, "A")
    return Claims(kind="session", kid="k", jti=jti, issued_at=START, expires_at=LATER, subject=subject)


async def test_a_hundred_thousand_creates_of_one_principal_fill_nothing() -> None:
    store, refusals = MemoryStore(max_sessions=1100), 0
    for n in range(100_000):
        try:
            await store.register(Record(f"ses_{n}", ALICE, START, 2 * LATER, START), of_subject=1000)
        except TooManySessions:
            refusals += 1
    assert refusals == 99_000
    await store.register(Record("ses_b", BOB, START, 2 * LATER, START), of_subject=1000)


def shelf(name: str, subject: str | None = ALICE, most: int | None = 1000) -> Namespace:
    return Namespace(session(name, subject).ref, LATER, 10_000, subject, most)


async def test_the_data_of_a_principal_s_sessions_has_a_limit_together(store: Store) -> None:
    """Another's has its own; replacing, deleting and ending make room, and what shrinks always fits."""
    size = 400 - VALUE_COST - 1
    for name in "ab":
        await store.write(shelf(name), "k", b"x" * size)
    full = partial(store.write, shelf("c"), "k")
    for write in (partial(full, b"x"), partial(store.write, shelf("a"), "k", b"x" * 3 * size)):
        with pytest.raises(PrincipalDataTooLarge, match=r"the limit is 1000 \(Limits\.data_bytes_per_principal\)"):
            await write()
    with pytest.raises(PrincipalDataTooLarge):
        await store.copy(shelf("a"), shelf("d"))
    for free in (shelf("g", BOB), shelf("e", None), shelf("f", most=None)):
        await store.write(free, "k", b"x" * 700)
    await store.write(shelf("f", most=None), "k", None)
    await store.write(shelf("a", most=10), "k", b"x" * (size - 1))
    await store.write(shelf("a"), "k", None)
    await full(b"x" * size)
    await revoke(store, session("b"))
    await store.purge(session("b").ref)
    await store.write(shelf("a"), "k", b"x" * size)


async def test_data_that_is_over_is_no_longer_counted(store: Store, clock: Clock) -> None:
    """Also where nothing but time ended its session."""
    await store.write(shelf("a"), "k", b"x" * 700)
    clock.now = LATER + 7200
    later = Namespace("ses_later", LATER + 9000, 10_000, ALICE, 1000)
    for _ in range(2):  # what is over goes with a change
        await store.write(Namespace("ses_other", LATER + 9000, 10_000), "k", b"x")
        clock.now += 61
    await store.write(later, "k", b"x" * 700)


async def test_a_store_that_is_full_says_how_it_got_full(
    store: Store, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Once a minute: how many sessions are recorded, what data takes, and the most of one principal."""
    for name, subject in (("a", ALICE), ("b", ALICE), ("c", BOB)):
        await store.register(Record.of(session(name, subject)))
        await store.write(shelf(name, subject, None), "k", b"x" * 300)
    fill = partial(store.write, Namespace(session("a").ref, LATER, 1 << 20), "big", b"x" * (1 << 19))
    if isinstance(store, MemoryStore):
        fill = partial(store.register, Record.of(session("d")))
    for seconds in (0, 1, 60):
        clock.now += seconds
        with pytest.raises(StoreFull):
            await fill()
    texts = [record.getMessage() for record in caplog.records if "store is full" in record.getMessage()]
    assert len(texts) == 2
    assert "3 sessions are recorded" in texts[0]
    assert "at most 1002 of them of one principal" in texts[0]
    await store.close()
