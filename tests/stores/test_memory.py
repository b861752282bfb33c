"""The store of one process: it forgets what has expired, and nothing else, ever."""

from __future__ import annotations

import pytest

from clients import START, Clock
from mcp_sessions.errors import StoreFull
from mcp_sessions.stores.memory import MemoryStore

HOUR = 3600


async def test_expired_revocations_are_dropped_after_the_leeway() -> None:
    """Whole hours at a time, and never before every token in them has ended on a clock that is a minute behind."""
    clock = Clock(START)
    store = MemoryStore(clock=clock)
    await store.revoke("a", expires_at=START + 1)
    clock.now = START + HOUR + 59
    await store.revoke("b", expires_at=START + HOUR + 100)
    assert await store.is_revoked("a", expires_at=START + 1)
    clock.now = START + HOUR + 60
    await store.revoke("c", expires_at=START + HOUR + 100)
    assert not await store.is_revoked("a", expires_at=START + 1)
    assert len(store) == 2


async def test_a_full_store_refuses_and_forgets_nothing() -> None:
    """A delete that cannot be kept fails loudly; one that is already kept, and one after room was made, succeed."""
    clock = Clock(START)
    store = MemoryStore(max_entries=2, clock=clock)
    await store.revoke("a", expires_at=START + 1)
    await store.revoke("b", expires_at=START + 9 * HOUR)
    with pytest.raises(StoreFull):
        await store.revoke("c", expires_at=START + 1)
    await store.revoke("a", expires_at=START + 1)
    assert not await store.is_revoked("c", expires_at=START + 1)
    clock.now = START + 2 * HOUR
    await store.revoke("c", expires_at=START + 9 * HOUR)
    assert len(store) == 2


async def test_closing_loses_nothing_that_is_still_asked_for() -> None:
    """Requests that are still under way during shutdown are judged as before."""
    store = MemoryStore()
    await store.revoke("a", expires_at=START + 99 * 365 * 24 * HOUR)
    await store.close()
    assert await store.is_revoked("a", expires_at=START + 99 * 365 * 24 * HOUR)
