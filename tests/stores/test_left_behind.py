"""What clients leave that connect for each call and never delete: nothing, or a record for a day."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from apps import Server, sessions
from clients import Client, Clock
from test_loss import Place, postgres, redis, sqlite
from wrapping import StoreWrapper

from mcp_sessions._session.claims import AUDIENCE
from mcp_sessions.stores._memory import MemoryStore

CLIENTS = 30
DAY = 86_400  # seconds


@contextmanager
def memory(clock: Clock, folder: Path) -> Iterator[Place]:
    yield lambda: MemoryStore(clock=clock), lambda: None


@pytest.fixture
def anyio_backend() -> str:
    """Redis's driver knows asyncio alone."""
    return "asyncio"


class Listening(StoreWrapper):
    """A store that notes what it is asked to do."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(MemoryStore(clock=clock))
        self.called = set[str]()

    def _call(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        self.called.add(name)
        return super()._call(name, args, kwargs)


@pytest.mark.anyio
async def test_untracked_they_leave_nothing_in_any_store() -> None:
    """A store is asked, and told of a session that begins; it keeps none but those of its own first second."""
    clock = Clock()
    store = Listening(clock)
    for _ in range(CLIENTS):
        client = Client(sessions(Server(), clock=clock, store=store))
        await client.tool(session=await client.create())
    assert store.called == {"open", "register_at_epoch", "status"}


@pytest.mark.anyio
@pytest.mark.parametrize("kind", [memory, redis, sqlite, postgres])
async def test_tracked_they_are_gone_after_a_day_of_silence(
    kind: Callable[..., AbstractContextManager[Place]], tmp_path: Path
) -> None:
    """Without any option, and not before."""
    clock = Clock()
    with kind(clock, tmp_path) as (make, _):
        store = make()
        app = sessions(Server(), clock=clock, store=store, tracked=True)
        sweeper = app._runtime.sweeper
        assert sweeper is not None
        for _ in range(CLIENTS):
            client = Client(app)
            await client.tool(session=await client.create())
        for later, left in ((DAY - 1, CLIENTS), (2 * 60, 0)):
            clock.now += later
            assert not await sweeper.sweep()
            assert await store.count(audience=AUDIENCE) == left
        assert await store.list_sessions(audience=AUDIENCE, limit=CLIENTS) == []
        await store.close()
