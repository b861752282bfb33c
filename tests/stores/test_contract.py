"""Every store keeps the contract, and answers as a plain model does.

SQLite's runs on both event loops; PostgreSQL's waits for its threads in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from runpy import run_path
from uuid import uuid4

import postgres_servers
import pytest
import redis_servers
from model import AnswersAsTheModel

from mcp_sessions.stores._base import Store
from mcp_sessions.stores._memory import MemoryStore
from mcp_sessions.stores._postgres import PostgresStore
from mcp_sessions.stores._redis import RedisStore
from mcp_sessions.stores._sqlite import SQLiteStore
from mcp_sessions.testing._contract import Clock, Fixtures
from mcp_sessions.testing._store_contract import SharedStoreContract, StoreContract

Make = Callable[[], Store]
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "own_store.py"


class TestMemory(AnswersAsTheModel, StoreContract):
    @pytest.fixture
    def make_store(self, clock: Clock) -> Make:
        return lambda: MemoryStore(clock=clock)


class TestSQLite(AnswersAsTheModel, SharedStoreContract):
    @pytest.fixture(params=["asyncio", "trio"])
    def anyio_backend(self, request: pytest.FixtureRequest) -> str:
        backend: str = request.param
        return backend

    @pytest.fixture
    def make_store(self, clock: Clock, tmp_path: Path) -> Make:
        return lambda: SQLiteStore(tmp_path / "sessions.db", clock=clock)


class TestRedis(AnswersAsTheModel, SharedStoreContract):
    """A real server, whose driver knows asyncio alone."""

    @pytest.fixture
    def make_store(self, clock: Clock) -> Make:
        url, prefix = redis_servers.shared().url, uuid4().hex
        return lambda: RedisStore(url, prefix=prefix, clock=clock, timeout=10)


class TestRedisCluster(AnswersAsTheModel, SharedStoreContract):
    """A real cluster, which refuses every command that crosses slots."""

    @pytest.fixture
    def make_store(self, clock: Clock) -> Make:
        url, prefix = redis_servers.shared_cluster().cluster_url, uuid4().hex
        return lambda: RedisStore(url, prefix=prefix, clock=clock, timeout=10)


class TestPostgres(AnswersAsTheModel, SharedStoreContract):
    """A real server, which is set up to be fast: that its changes are durable is not a part of the contract."""

    @pytest.fixture
    def anyio_backend(self) -> str:
        return "trio"

    @pytest.fixture
    def make_store(self, clock: Clock) -> Make:
        url, schema = postgres_servers.shared().url, f"s{uuid4().hex}"
        return lambda: PostgresStore(url, schema=schema, clock=clock, durability="ignore", timeout=10)


class TestExample(AnswersAsTheModel, StoreContract):
    """The store of `examples/own_store.py`, which a page shows."""

    @pytest.fixture
    def make_store(self, clock: Clock) -> Make:
        made: Make = partial(run_path(str(EXAMPLE))["DictStore"], clock=clock)
        return made


def test_a_class_without_a_store_fails_with_the_remedy() -> None:
    """A class that overrides nothing fails with the remedy."""
    with pytest.raises(NotImplementedError, match=re.escape("override the fixture make_store")):
        Fixtures.make_store.__wrapped__(Fixtures(), Clock())  # type: ignore[attr-defined]
