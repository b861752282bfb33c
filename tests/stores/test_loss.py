"""What a store lost is never vouched for, and what begins after the loss is; an answer that was lost is known again."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import postgres_servers
import pytest
import redis_servers
from clients import Clock
from every_store import STORES, name

from mcp_sessions._errors import StoreUnavailable
from mcp_sessions.stores._base import SessionStatus
from mcp_sessions.stores._redis import RedisStore
from mcp_sessions.testing._contract import revoke, session

LOSSES = 5
KINDS = pytest.mark.parametrize("kind", ["sqlite", "redis", "postgres"])


def lose(kind: str, folder: Path) -> None:
    """Take away all that a store holds."""
    if kind == "sqlite":
        for path in folder.iterdir():
            path.unlink()
    elif kind == "redis":
        shared = redis_servers.shared()
        shared.command("DEL", *shared.command("KEYS", f"*{name(folder)}*"))
    else:
        postgres_servers.shared().execute(f"DROP SCHEMA {name(folder)} CASCADE")


@pytest.fixture
def anyio_backend() -> str:
    """Redis's driver knows asyncio alone."""
    return "asyncio"


@KINDS
async def test_a_deletion_a_loss_and_a_fresh_worker_within_one_second(kind: str, tmp_path: Path) -> None:
    """Never is what was deleted accepted again, and never is what begins after the loss refused."""
    make = partial(STORES[kind], clock := Clock(), tmp_path)
    for number in range(LOSSES):
        clock.now += 0.001
        store = make()
        await store.open()
        deleted = session(f"deleted-{number}")
        await store.register_at_epoch(deleted)
        assert await store.status(deleted) is SessionStatus.LIVE
        await revoke(store, deleted)
        await store.close()
        lose(kind, tmp_path)
        clock.now += 0.001
        fresh = make()
        await fresh.open()
        new = session(f"new-{number}")
        await fresh.register_at_epoch(new)
        assert await fresh.statuses([deleted, new]) == [SessionStatus.UNKNOWN, SessionStatus.LIVE]
        await fresh.close()


@KINDS
async def test_a_revocation_without_an_answer_knows_itself_again(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been the first, whose caller runs `on_end`: asked again, it is. Of many, the oldest is forgotten."""
    monkeypatch.setattr("mcp_sessions.stores._base.MAX_UNSURE", 1)
    store: Any = STORES[kind](Clock(), tmp_path)
    await store.open()
    caller, method = (store._client, "run") if isinstance(store, RedisStore) else (store, "_change")
    call = getattr(caller, method)

    async def lose_answer(*args: Any, **options: Any) -> None:
        await call(*args, **options)
        raise StoreUnavailable("store_timeout")

    with monkeypatch.context() as fault:
        fault.setattr(caller, method, lose_answer)
        for one in "ab":
            with pytest.raises(StoreUnavailable):
                await revoke(store, session(one))
    assert [await revoke(store, session(one)) for one in "abb"] == [False, True, False]
    await store.close()
