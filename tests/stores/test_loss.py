"""What a store lost is never vouched for, and what begins after the loss is; an answer that was lost is known again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import postgres_servers
import pytest
import redis_servers
from clients import Clock

from mcp_sessions._errors import StoreUnavailable
from mcp_sessions.stores._base import SessionStatus, Store
from mcp_sessions.stores._postgres import PostgresStore
from mcp_sessions.stores._redis import RedisStore
from mcp_sessions.stores._sqlite import SQLiteStore
from mcp_sessions.testing._contract import revoke, session

LOSSES = 20
Place = tuple[Callable[[], Store], Callable[[], object]]
"""What makes a store, and what takes all that it holds away."""


@contextmanager
def redis(clock: Clock, folder: Path) -> Iterator[Place]:
    with redis_servers.serving() as server:
        yield lambda: RedisStore(server.url, clock=clock, timeout=10), lambda: server.command("FLUSHALL")


@contextmanager
def sqlite(clock: Clock, folder: Path) -> Iterator[Place]:
    def delete() -> None:
        for path in folder.iterdir():
            path.unlink()

    yield lambda: SQLiteStore(folder / "sessions.db", clock=clock), delete


@contextmanager
def postgres(clock: Clock, folder: Path) -> Iterator[Place]:
    server, schema = postgres_servers.shared(), f"s{uuid4().hex}"

    def make() -> Store:
        return PostgresStore(server.url, schema=schema, clock=clock, durability="ignore", timeout=10)

    yield make, lambda: server.execute(f"DROP SCHEMA {schema} CASCADE")


@pytest.fixture
def anyio_backend() -> str:
    """Redis's driver knows asyncio alone."""
    return "asyncio"


@pytest.mark.anyio
@pytest.mark.parametrize("kind", [redis, sqlite, postgres])
async def test_a_deletion_a_loss_and_a_fresh_worker_within_one_second(
    kind: Callable[..., AbstractContextManager[Place]], tmp_path: Path
) -> None:
    """Never is what was deleted accepted again, and never is what begins after the loss refused."""
    clock = Clock()
    with kind(clock, tmp_path) as (make, lose):
        for number in range(LOSSES):
            clock.now += 0.001
            store = make()
            await store.open()
            deleted = session(f"deleted-{number}")
            await store.register_at_epoch(deleted)
            assert await store.status(deleted) is SessionStatus.LIVE
            await revoke(store, deleted)
            await store.close()
            lose()
            clock.now += 0.001
            fresh = make()
            await fresh.open()
            new = session(f"new-{number}")
            await fresh.register_at_epoch(new)
            assert await fresh.statuses([deleted, new]) == [SessionStatus.UNKNOWN, SessionStatus.LIVE]
            await fresh.close()


@pytest.mark.anyio
@pytest.mark.parametrize("kind", [redis, sqlite, postgres])
async def test_a_revocation_without_an_answer_knows_itself_again(
    kind: Callable[..., AbstractContextManager[Place]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been the first, whose caller runs `on_end`: asked again, it is. Of many, the oldest is forgotten."""
    monkeypatch.setattr("mcp_sessions.stores._base.MAX_UNSURE", 1)
    with kind(Clock(), tmp_path) as (make, _):
        store: Any = make()
        await store.open()
        caller, name = (store._client, "run") if isinstance(store, RedisStore) else (store, "_change")
        call = getattr(caller, name)

        async def lose_answer(*args: Any, **options: Any) -> None:
            await call(*args, **options)
            raise StoreUnavailable("store_timeout")

        with monkeypatch.context() as fault:
            fault.setattr(caller, name, lose_answer)
            for one in "ab":
                with pytest.raises(StoreUnavailable):
                    await revoke(store, session(one))
        assert [await revoke(store, session(one)) for one in "abb"] == [False, True, False]
        await store.close()
