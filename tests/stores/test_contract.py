"""Every store keeps the contract."""

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from runpy import run_path
from typing import ClassVar
from uuid import uuid4

import pytest
import redis_servers
from every_store import STORES, memory_folder

from mcp_sessions.stores._base import Store
from mcp_sessions.stores._redis import RedisStore
from mcp_sessions.testing._contract import Clock, Fixtures
from mcp_sessions.testing._store_contract import SharedStoreContract, StoreContract

Make = Callable[[], Store]
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "own_store.py"


class OfKind(Fixtures):
    kind: ClassVar[str]

    @pytest.fixture
    def make_store(self, clock: Clock, tmp_path: Path) -> Make:
        return partial(STORES[self.kind], clock, tmp_path)


class TestMemory(OfKind, StoreContract):
    kind = "memory"


class TestSQLite(OfKind, SharedStoreContract):
    kind = "sqlite"

    @pytest.fixture
    def tmp_path(self) -> Iterator[Path]:
        with memory_folder() as folder:
            yield Path(folder)


class TestRedis(OfKind, SharedStoreContract):
    kind = "redis"


@pytest.mark.nightly
class TestRedisCluster(SharedStoreContract):
    """The same scripts, refused where they cross slots; `test_redis.py` calls each in the gate."""

    @pytest.fixture
    def make_store(self, clock: Clock) -> Make:
        url, prefix = redis_servers.shared_cluster().cluster_url, uuid4().hex
        return lambda: RedisStore(url, prefix=prefix, clock=clock, timeout=10)


class TestPostgres(OfKind, SharedStoreContract):
    kind = "postgres"


class TestExample(StoreContract):
    """The store of `examples/own_store.py`, which a page shows."""

    @pytest.fixture
    def make_store(self, clock: Clock) -> Make:
        made: Make = partial(run_path(str(EXAMPLE))["DictStore"], clock=clock)
        return made


def test_a_class_without_a_store_fails_with_the_remedy() -> None:
    with pytest.raises(NotImplementedError, match=re.escape("override the fixture make_store")):
        Fixtures.make_store.__wrapped__(Fixtures(), Clock())  # type: ignore[attr-defined]
