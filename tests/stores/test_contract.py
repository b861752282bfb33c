"""Every store keeps the contract, and gives long random programs the answers of a plain model.

What the contract leaves open is open here: within the resolution a session may be live or idle, and what is over may be
forgotten at once or later.
"""

import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from runpy import run_path
from typing import Any, ClassVar
from uuid import uuid4

import pytest
import redis_servers
from every_store import STORES, memory_folder

from mcp_sessions._errors import DataError, DataGone, DataNotInteger, DataTooLarge
from mcp_sessions._session.claims import AUDIENCE, Claims
from mcp_sessions._session.data import Namespace
from mcp_sessions.stores._base import Record, SessionStatus, Store, resolution
from mcp_sessions.stores._redis import RedisStore
from mcp_sessions.testing._contract import ALICE, BOB, START, Clock, Fixtures, session
from mcp_sessions.testing._store_contract import SharedStoreContract, StoreContract

Make = Callable[[], Store]
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "own_store.py"
STEPS = 400
LEASE = 50
MAX_BYTES = 40
MOST = 2**63 - 1
SUBJECTS = (ALICE, BOB, None)
KEYS = ("k", "käse", "zahl")
VALUES = (None, b"1", b"-7", b"null", b'"some words"', b'"rather more words"', b"%d" % MOST)

Item = tuple[bytes | None, float | None]
Outcome = Any  # what a call returns, or the class of what it raises


@dataclass
class Kept:
    """What the model knows of a recorded session."""

    used: int
    reason: str | None = None
    lease_until: int = 0


@dataclass
class Program:
    """Makes one random step after the other on a store, and compares its answers with those of a few dicts."""

    store: Store
    clock: Clock
    random: Random
    idle_timeout: int | None
    now: int = START
    made: list[Claims] = field(default_factory=list)
    revoked: set[Claims] = field(default_factory=set)
    cut_offs: dict[str | None, int] = field(default_factory=dict)
    records: dict[Claims, Kept] = field(default_factory=dict)
    data: dict[tuple[Claims, str], Item] = field(default_factory=dict)

    def status(self, one: Claims) -> SessionStatus:
        cut_off = max(self.cut_offs.get(None, 0), self.cut_offs.get(one.subject, 0))
        return SessionStatus.ENDED if one in self.revoked or one.issued_at < cut_off else SessionStatus.LIVE

    def idle(self, kept: Kept) -> set[bool]:
        """What may be said to whether a session is idle."""
        unused = -1 if self.idle_timeout is None else self.now - kept.used - self.idle_timeout
        return {unused >= 0, unused >= resolution(self.idle_timeout)}

    def touch(self, one: Claims) -> set[SessionStatus]:
        if self.status(one) is SessionStatus.ENDED:
            return {SessionStatus.ENDED}
        if one not in self.records:
            return {SessionStatus.UNKNOWN}
        return {SessionStatus.IDLE if idle else SessionStatus.LIVE for idle in self.idle(self.records[one])}

    def alive(self, one: Claims) -> bool:
        return one in self.records and self.status(one) is SessionStatus.LIVE and self.now < one.expires_at

    def ends(self, one: Claims) -> set[str | None]:
        """Why a recorded session may be given to a taker now; None where it may be given to none."""
        kept = self.records[one]
        if kept.reason is not None:
            return {kept.reason if kept.lease_until <= self.now else None}
        by_itself = "expired" if one.expires_at <= self.now else None
        return {"idle" if idle else by_itself for idle in self.idle(kept)} | {by_itself}

    def item(self, one: Claims, key: str) -> Item:
        value, end = self.data.get((one, key), (None, None))
        kept = value is not None and (end is None or self.now < end)
        return (value, end) if kept else (None, None)

    def size(self, one: Claims) -> int:
        """Bytes that a session's data takes now."""
        items = [(key, self.item(one, key)[0]) for whose, key in self.data if whose == one]
        return sum(len(key.encode()) + len(value) for key, value in items if value is not None)

    def change(self, one: Claims, key: str, item: Item, result: object) -> Outcome:
        """Make a change of data, and say what comes of it."""
        if one in self.revoked:
            return DataGone
        before = self.item(one, key)
        self.data[one, key] = item
        if self.item(one, key)[0] is not None and self.size(one) > MAX_BYTES:
            self.data[one, key] = before
            return DataTooLarge
        return result

    async def run(self) -> None:
        steps = [name for name in vars(Program) if name.startswith("step_")]
        self.create(lives=1_000_000)
        for n in range(STEPS):
            name = self.random.choice(steps)
            print(n, name)  # shown with a failure
            await getattr(self, name)()

    def living(self) -> Claims:
        """One of the latest sessions, or the first, which lives longest, whose token has not expired."""
        return self.random.choice([one for one in self.made[:1] + self.made[-6:] if self.now < one.expires_at])

    async def step_wait(self) -> None:
        self.now += self.random.choice([1, 4, 20, 29, 50, 60])
        self.clock.now = self.now

    async def step_create(self) -> None:
        self.create(lives=self.random.choice([60, 300, 1000]))
        if self.random.random() < 0.8:
            await self.register(self.made[-1])

    def create(self, *, lives: int) -> None:
        now, subject = self.now, self.random.choice(SUBJECTS)
        self.made.append(session(f"{len(self.made)}", issued_at=now, expires_at=now + lives, subject=subject))

    async def step_record(self) -> None:
        one = self.living()
        await self.register(one)

    async def register(self, one: Claims) -> None:
        await self.store.register(Record(one.ref, one.subject, one.issued_at, one.expires_at, self.now))
        if one not in self.revoked:
            self.records.setdefault(one, Kept(self.now))

    async def step_standings(self) -> None:
        asked = [one for one in self.made if self.now < one.expires_at]
        said = [self.status(one) for one in asked]
        assert await self.store.statuses(asked) == [await self.store.status(one) for one in asked] == said

    async def step_revoke(self) -> None:
        one = self.living()
        new = await self.store.revoke(Record.of(one), reason="deleted", lease=LEASE)
        assert new is (one not in self.revoked)
        self.revoked.add(one)
        if new and one in self.records:
            kept = self.records[one]
            kept.reason, kept.lease_until = "deleted", self.now + LEASE

    async def step_revoke_before(self) -> None:
        subject, moment = self.random.choice(SUBJECTS), self.now - self.random.randrange(100, 400)
        await self.store.revoke_before(moment, audience=AUDIENCE, subject=subject, expires_at=self.now + 2000)
        self.cut_offs[subject] = max(self.cut_offs.get(subject, 0), moment)

    async def step_seen(self) -> None:
        one = self.living()
        told = await self.store.touch(one, idle_timeout=self.idle_timeout)
        assert told in self.touch(one)
        if told is SessionStatus.LIVE:
            self.records[one].used = self.now

    async def step_sessions(self) -> None:
        for subject in (ALICE, BOB):
            found = await self.store.list_sessions(subject=subject, audience=AUDIENCE, limit=1000)
            assert [record.created_at for record in found] == sorted(record.created_at for record in found)
            alive = {one.ref for one in self.made if one.subject == subject and self.alive(one)}
            assert {record.ref for record in found} == alive

    async def step_find(self) -> None:
        for one in self.made[-6:]:
            found = await self.store.get(one.ref)
            assert (found is not None) is self.alive(one)
            if found is not None:
                used = self.records[one].used
                assert used - resolution(self.idle_timeout) <= found.seen_at <= used
                assert found == Record(one.ref, one.subject, one.issued_at, one.expires_at, found.seen_at)

    async def step_take_ended(self) -> None:
        taken = await self.store.claim_ended(audience=AUDIENCE, idle_timeout=self.idle_timeout, lease=LEASE, limit=1000)
        reasons = {ended.record.ref: ended.reason for ended in taken}
        assert len(reasons) == len(taken)
        for one, kept in self.records.items():
            reason = reasons.pop(one.ref, None)
            assert reason in self.ends(one)
            if reason is not None:
                kept.reason, kept.lease_until = reason, self.now + LEASE
                self.revoked.add(one)
        assert not reasons

    async def step_finish(self) -> None:
        ended = [one for one, kept in self.records.items() if kept.reason is not None]
        for one in self.random.sample(ended, min(1, len(ended))):
            await self.store.purge(one.ref)
            del self.records[one]
            for key in KEYS:
                self.data.pop((one, key), None)

    async def step_read(self) -> None:
        for one in self.made[-6:]:
            if self.now < one.expires_at or one in self.records:
                for key in KEYS:
                    assert await self.store.read(self.shelf(one), key) == self.item(one, key)[0]

    async def step_write(self) -> None:
        one = self.living()
        key, value = self.random.choice(KEYS), self.random.choice(VALUES)
        end = self.random.choice([None, self.now, self.now + 60])
        said = self.change(one, key, (value, end), None)
        assert await outcome(self.store.write(self.shelf(one), key, value, expires_at=end)) == said

    async def step_swap(self) -> None:
        one = self.living()
        key, new = self.random.choice(KEYS), self.random.choice(VALUES)
        value, end = self.item(one, key)
        old = self.random.choice([value, b"1", None])
        fits = old == value or one in self.revoked
        said = self.change(one, key, (new, end), True) if fits else False
        assert await outcome(self.store.compare_and_swap(self.shelf(one), key, old, new)) == said

    async def step_add(self) -> None:
        one = self.living()
        key, by = self.random.choice(KEYS), self.random.choice([1, -1, MOST])
        value, end = self.item(one, key)
        total = int(value or 0) + by if value is None or value.lstrip(b"-").isdigit() else MOST + 1
        fits = -MOST - 1 <= total <= MOST or one in self.revoked
        said = self.change(one, key, (b"%d" % total, end), total) if fits else DataNotInteger
        assert await outcome(self.store.add(self.shelf(one), key, by)) == said

    @staticmethod
    def shelf(one: Claims) -> Namespace:
        return Namespace(one.ref, one.expires_at, MAX_BYTES)


async def outcome(call: Awaitable[object]) -> Outcome:
    try:
        return await call
    except DataError as error:
        return type(error)


class AnswersAsTheModel(Fixtures):
    kind: ClassVar[str]

    @pytest.fixture
    def make_store(self, clock: Clock, tmp_path: Path) -> Make:
        return partial(STORES[self.kind], clock, tmp_path)

    @pytest.mark.parametrize("seed", range(3))
    async def test_a_store_answers_as_the_model_does(self, store: Store, clock: Clock, seed: int) -> None:
        """Whatever is asked of it, in whatever order."""
        await Program(store, clock, Random(seed), [None, 30, 300][seed]).run()


class TestMemory(AnswersAsTheModel, StoreContract):
    kind = "memory"


class TestSQLite(AnswersAsTheModel, SharedStoreContract):
    kind = "sqlite"

    @pytest.fixture
    def tmp_path(self) -> Iterator[Path]:
        with memory_folder() as folder:
            yield Path(folder)


class TestRedis(AnswersAsTheModel, SharedStoreContract):
    kind = "redis"


@pytest.mark.nightly
class TestRedisCluster(AnswersAsTheModel, SharedStoreContract):
    """The same scripts, refused where they cross slots; `test_redis.py` calls each in the gate."""

    @pytest.fixture
    def make_store(self, clock: Clock) -> Make:
        url, prefix = redis_servers.shared_cluster().cluster_url, uuid4().hex
        return lambda: RedisStore(url, prefix=prefix, clock=clock, timeout=10)


class TestPostgres(AnswersAsTheModel, SharedStoreContract):
    kind = "postgres"

    @pytest.fixture
    def anyio_backend(self) -> str:
        """It waits for its threads as SQLite does, which is tested on asyncio."""
        return "trio"


class TestExample(AnswersAsTheModel, StoreContract):
    """The store of `examples/own_store.py`, which a page shows."""

    @pytest.fixture
    def make_store(self, clock: Clock) -> Make:
        made: Make = partial(run_path(str(EXAMPLE))["DictStore"], clock=clock)
        return made


def test_a_class_without_a_store_fails_with_the_remedy() -> None:
    with pytest.raises(NotImplementedError, match=re.escape("override the fixture make_store")):
        Fixtures.make_store.__wrapped__(Fixtures(), Clock())  # type: ignore[attr-defined]
