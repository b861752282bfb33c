"""What every store promises, shown on each: a new store is one line in `STORES`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import anyio
import pytest

from clients import START, Clock
from mcp_sessions.stores.base import Store
from mcp_sessions.stores.memory import MemoryStore

STORES: dict[str, Callable[[Clock], Store]] = {
    "memory": lambda clock: MemoryStore(clock=clock),
}
LATER = START + 3600


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, clock: Clock) -> Store:
    return STORES[request.param](clock)


async def test_what_was_never_revoked_is_not_revoked(store: Store) -> None:
    """Nothing is stored for a live session, so an unknown one is a live one."""
    assert not await store.is_revoked("a", expires_at=LATER)
    await store.close()


async def test_a_revocation_is_seen_as_soon_as_it_returns(store: Store) -> None:
    """And it touches no other session, not even one that ends at the same moment."""
    await store.revoke("a", expires_at=LATER)
    assert await store.is_revoked("a", expires_at=LATER)
    assert not await store.is_revoked("b", expires_at=LATER)
    await store.close()


async def test_revoking_twice_is_the_same_as_once(store: Store) -> None:
    """A delete that is tried again succeeds again."""
    await store.revoke("a", expires_at=LATER)
    await store.revoke("a", expires_at=LATER)
    assert await store.is_revoked("a", expires_at=LATER)
    await store.close()


async def test_a_revocation_lasts_as_long_as_its_token(store: Store, clock: Clock) -> None:
    """However many others come and go: what is forgotten too early is a deleted session that works again."""
    await store.revoke("a", expires_at=LATER)
    for step in range(60):
        clock.now = START + 60 * step
        await store.revoke(f"short-{step}", expires_at=int(clock.now) + 1)
        assert await store.is_revoked("a", expires_at=LATER)
    clock.now = LATER - 1
    assert await store.is_revoked("a", expires_at=LATER)
    await store.close()


async def test_an_end_in_the_past_is_no_error(store: Store) -> None:
    """A session that expires while it is being deleted is deleted."""
    await store.revoke("a", expires_at=START - 10)
    await store.close()


async def test_many_revocations_at_once_are_all_kept(store: Store) -> None:
    """Parallel deletes lose nothing."""
    async with anyio.create_task_group() as group:
        for n in range(50):
            group.start_soon(partial(store.revoke, f"s{n}", expires_at=LATER + n))
    assert all([await store.is_revoked(f"s{n}", expires_at=LATER + n) for n in range(50)])
    await store.close()
