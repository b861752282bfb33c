"""What every store promises of revocations and records, as tests: `store_contract` puts all parts together.

Each test is one promise, with a store that was there for a day and a clock that only the test moves.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import anyio
import pytest

from .._session.claims import AUDIENCE, Claims
from .._session.data import Namespace
from ..errors import DataGone
from ..stores.base import Ended, Record, Standing, Store, resolution

START: Final = 1_800_000_000
HOUR: Final = 3600
DAY: Final = 24 * HOUR
LATER: Final = START + HOUR
ALICE, BOB = "alice".ljust(22, "A"), "bob".ljust(22, "A")


class Clock:
    """A clock that a test moves."""

    def __init__(self, now: float = START) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def session(name: str = "a", *, issued_at: int = START, expires_at: int = LATER, subject: str | None = ALICE) -> Claims:
    """Return the claims of a session's token."""
    jti = name.ljust(22, "A")
    return Claims(kind="session", kid="k", jti=jti, issued_at=issued_at, expires_at=expires_at, subject=subject)


def namespace(claims: Claims, *, max_bytes: int = 1000) -> Namespace:
    """Return a session's place for data."""
    return Namespace(claims.ref, claims.expires_at, max_bytes)


async def revoke(store: Store, claims: Claims, reason: str = "deleted", *, lease: float = 30) -> bool:
    """End a session."""
    until = claims.expires_at
    return await store.revoke(claims.ref, audience=claims.audience, expires_at=until, reason=reason, lease=lease)


async def claim(
    store: Store, *, idle_timeout: int | None = None, lease: float = 30, limit: int = 100, audience: str = AUDIENCE
) -> list[Ended]:
    """Lease the sessions that ended."""
    return await store.claim_ended(audience=audience, idle_timeout=idle_timeout, lease=lease, limit=limit)


async def at_once(calls: Sequence[Callable[[], Awaitable[Any]]]) -> list[Any]:
    """Return what parallel calls return, in their order."""
    results: list[Any] = [None] * len(calls)

    async def call(place: int) -> None:
        results[place] = await calls[place]()

    async with anyio.create_task_group() as group:
        for place in range(len(calls)):
            group.start_soon(call, place)
    return results


class Fixtures:
    """What the tests ask for; a store's own class overrides `make_store`.

    Attributes:
        leeway: Seconds for which the store keeps what is over, for clocks that disagree.
    """

    leeway = 60

    @pytest.fixture
    def anyio_backend(self) -> str:
        """The event loop; with `params=["asyncio", "trio"]`, a fixture in your class runs the tests on both."""
        return "asyncio"

    @pytest.fixture
    def clock(self) -> Clock:
        """The store's clock."""
        return Clock()

    @pytest.fixture
    def make_store(self, clock: Clock) -> Callable[[], Store]:
        """What makes stores, not yet opened, that all lie at one place, where no other test's stores lie."""
        raise NotImplementedError("override the fixture make_store: it returns a callable that makes a store")

    @pytest.fixture
    async def store(self, make_store: Callable[[], Store], clock: Clock) -> AsyncIterator[Store]:
        """A store that was opened a day ago, so that it vouches for the sessions of today."""
        made = make_store()
        clock.now -= DAY
        await made.open()
        clock.now += DAY
        yield made
        await made.close()


@pytest.mark.anyio
class RevocationContract(Fixtures):
    """Opening, closing, and which sessions have ended."""

    async def test_opening_twice_is_the_same_as_once(self, store: Store) -> None:
        """Opening again loses nothing."""
        await store.open()
        await revoke(store, session())
        await store.open()
        assert await store.status(session()) is Standing.ENDED

    async def test_a_store_that_was_never_opened_opens_itself(self, make_store: Callable[[], Store]) -> None:
        """It does at its first use, a question or a change; closing it without any is not an error."""
        asked, changed, unused = make_store(), make_store(), make_store()
        assert await asked.status(session()) is Standing.LIVE
        assert await revoke(changed, session()) is True
        for one in (asked, changed, unused):
            await one.close()

    async def test_a_revocation_is_seen_as_soon_as_it_returns(self, store: Store) -> None:
        """Nothing is stored for a live session, so an unknown one is live, and stays so when another ends."""
        assert await store.status(session("a")) is Standing.LIVE
        assert await revoke(store, session("a")) is True
        assert await store.status(session("a")) is Standing.ENDED
        assert await store.status(session("b")) is Standing.LIVE

    async def test_only_one_call_ends_a_session(self, store: Store) -> None:
        """A delete that is tried again succeeds again, and one of a session that expires meanwhile does, too."""
        assert [await revoke(store, session()) for _ in range(2)] == [True, False]
        assert await store.status(session()) is Standing.ENDED
        assert await revoke(store, session("b", expires_at=START - 1)) is True

    async def test_of_parallel_revocations_one_ends_the_session(self, store: Store) -> None:
        """Parallel deletes of different sessions lose nothing."""
        assert (await at_once([partial(revoke, store, session())] * 20)).count(True) == 1
        many = [session(f"s{n}", expires_at=LATER + n) for n in range(50)]
        await at_once([partial(revoke, store, one) for one in many])
        assert await store.statuses(many) == [Standing.ENDED] * 50

    async def test_many_are_asked_about_in_one_trip(self, store: Store) -> None:
        """The answers are in the order of the questions, which may repeat; no questions have no answers."""
        a, b = session("a"), session("b")
        await revoke(store, b)
        assert await store.statuses([a, b, a]) == [Standing.LIVE, Standing.ENDED, Standing.LIVE]
        assert await store.statuses([]) == []

    async def test_a_revocation_lasts_as_long_as_its_token_and_the_leeway(self, store: Store, clock: Clock) -> None:
        """What is forgotten too early is a deleted session that works again, for a clock that is behind, too."""
        await revoke(store, session("a"))
        for step in range(60):
            clock.now = START + 60 * step
            await revoke(store, session(f"short-{step}", expires_at=int(clock.now) + 1))
            assert await store.status(session("a")) is Standing.ENDED
        clock.now = LATER + self.leeway - 1
        await revoke(store, session("b", expires_at=LATER + HOUR))
        assert await store.status(session("a")) is Standing.ENDED

    async def test_a_cut_off_ends_what_a_principal_was_issued_before(self, store: Store) -> None:
        """What was issued in that second or later lives on, and what others have."""
        before, then = session("a", issued_at=START - 1), session("b", issued_at=START)
        others, anonymous = (session(issued_at=START - 1, subject=subject) for subject in (BOB, None))
        await store.revoke_before(START, audience=AUDIENCE, subject=ALICE, until=LATER)
        assert await store.status(before) is Standing.ENDED
        assert await store.statuses([then, others, anonymous]) == [Standing.LIVE] * 3

    @pytest.mark.parametrize("subject", [ALICE, None])
    async def test_of_several_cut_offs_the_latest_counts(self, store: Store, subject: str | None) -> None:
        """In any order; one for a principal does not hide one for all, which ends anonymous sessions, too."""
        for moment in (START - 10, START, START - 5):
            await store.revoke_before(moment, audience=AUDIENCE, subject=subject, until=LATER)
        await store.revoke_before(START - 20, audience=AUDIENCE, subject=BOB, until=LATER)
        before = [session(issued_at=START - 1, subject=whose) for whose in (ALICE, BOB, None)]
        ended = [Standing.ENDED if subject in {None, one.subject} else Standing.LIVE for one in before]
        assert await store.statuses(before) == ended
        assert await store.status(session(issued_at=START)) is Standing.LIVE

    async def test_a_cut_off_lasts_until_the_last_session_concerned_has_ended(self, store: Store, clock: Clock) -> None:
        """It lasts the leeway longer, and a later one that may go sooner does not shorten it."""
        old = session(issued_at=START - 1, expires_at=LATER + self.leeway)
        await store.revoke_before(START - 1, audience=AUDIENCE, subject=ALICE, until=LATER)
        await store.revoke_before(START, audience=AUDIENCE, subject=ALICE, until=START + 10)
        clock.now = LATER + self.leeway - 1
        await revoke(store, session("b", expires_at=LATER + HOUR))
        assert await store.status(old) is Standing.ENDED


@pytest.mark.anyio
class RecordContract(Fixtures):
    """Which sessions there are, where sessions are tracked, and whose `on_end` is to be run."""

    async def test_a_record_is_given_back_as_it_was_noted(self, store: Store, clock: Clock) -> None:
        """Its place in a lineage and the trace of its start come back to who lists it, finds it or claims its end."""
        root, trace = session("root", subject=None), f"00-{'ab' * 16}-{'cd' * 8}-01"
        noted = replace(Record.of(session("fork")), root=root.ref, trace=trace)
        for record in (noted, Record.of(root)):
            await store.register(record)
        listed = [await store.sessions(ALICE, audience=AUDIENCE), await store.forks(root.ref)]
        assert listed == [[await store.find(noted.ref)]] * 2 == [[noted]] * 2
        assert await store.find(root.ref) == Record.of(root)
        assert await store.touch(root, idle_timeout=None) is Standing.LIVE
        clock.now = LATER
        ended = await claim(store)
        assert sorted(ended, key=lambda one: one.record.trace or "") == [
            Ended(Record.of(root), "expired"),
            Ended(noted, "expired"),
        ]

    async def test_a_principals_sessions_are_listed_oldest_first(self, store: Store) -> None:
        """In whatever order they were recorded, and without those of others."""
        made = [session(f"s{n}", issued_at=START - n) for n in (2, 5, 1, 4, 3)]
        for one in (*made, session("b", subject=BOB)):
            await store.register(Record.of(one))
        in_order = sorted(map(Record.of, made), key=lambda record: record.created_at)
        assert await store.sessions(ALICE, audience=AUDIENCE) == in_order
        assert await store.sessions("unknown", audience=AUDIENCE) == []

    async def test_sessions_and_forks_are_listed_in_pages(self, store: Store) -> None:
        """In the order of `Record.position`; a page goes on after the last one of the page before, ended or not."""
        root = session("root").ref
        records = [replace(Record.of(session(f"s{n}", issued_at=START + n // 2)), root=root) for n in range(5)]
        for record in records:
            await store.register(record)
        in_order = sorted(records, key=lambda one: one.position)
        for pages in (partial(store.sessions, ALICE, audience=AUDIENCE), partial(store.forks, root)):
            assert await pages(limit=2) == in_order[:2]
            assert await pages(after=in_order[3].position) == in_order[4:]
        for n in (0, 1):
            await revoke(store, session(f"s{n}", issued_at=START))
        for pages in (partial(store.sessions, ALICE, audience=AUDIENCE), partial(store.forks, root)):
            assert await pages(limit=2) == await pages(after=in_order[1].position, limit=2) == in_order[2:4]

    async def test_what_was_cut_off_is_listed_for_who_ends_it_by_name(self, store: Store) -> None:
        """Page by page, until that is done; what was issued later lives on."""
        cut, then = [session(f"s{n}", issued_at=START - 1) for n in range(3)], session("then")
        for one in (*cut, then):
            await store.register(Record.of(one))
        await store.revoke_before(START, audience=AUDIENCE, subject=ALICE, until=LATER)
        whole = partial(store.sessions, ALICE, audience=AUDIENCE, cut_off=True)
        assert await store.sessions(ALICE, audience=AUDIENCE) == await whole(after=(START, "")) == [Record.of(then)]
        assert {one.ref for one in await whole(limit=3)} == {one.ref for one in cut}
        for one in cut:
            await revoke(store, one, lease=0)
        assert await whole() == [Record.of(then)]
        assert len(await claim(store)) == 3

    async def test_the_forks_of_a_lineage_are_listed_oldest_first(self, store: Store, clock: Clock) -> None:
        """Of every generation and principal, as long as each lives, though the root itself has ended."""
        root, other = session("root", subject=None), session("other")
        whose = {2: None, 1: ALICE, 3: None, 4: ALICE}
        forks = {
            n: replace(
                Record.of(session(f"f{n}", issued_at=START + n, expires_at=LATER + n, subject=subject)), root=root.ref
            )
            for n, subject in whose.items()
        }
        for record in (Record.of(root), *forks.values(), replace(Record.of(session("else")), root=other.ref)):
            await store.register(record)
        assert await store.forks(root.ref) == [forks[n] for n in (1, 2, 3, 4)]
        assert await store.find(forks[2].ref) == forks[2]
        for unrelated in (forks[2].ref, ALICE):
            assert await store.forks(unrelated) == await store.sessions(root.ref, audience=AUDIENCE) == []
        await revoke(store, root)
        await store.purge(root.ref)
        await store.revoke(forks[2].ref, audience=AUDIENCE, expires_at=LATER + 2, reason="deleted", lease=0)
        assert [ended.record for ended in await claim(store)] == [forks[2]]
        await store.purge(forks[2].ref)
        clock.now = LATER + 3
        assert await store.forks(root.ref) == [forks[4]]
        await store.revoke_before(START + 5, audience=AUDIENCE, subject=ALICE, until=LATER)
        assert await store.forks(root.ref) == []

    async def test_an_ended_session_is_neither_listed_nor_found(self, store: Store, clock: Clock) -> None:
        """From its revocation or its very end on."""
        a, b = session("a"), session("b")
        for one in (a, b):
            await store.register(Record.of(one))
        await revoke(store, a)
        clock.now = LATER - 1
        assert await store.sessions(ALICE, audience=AUDIENCE) == [Record.of(b)]
        assert [await store.find(one.ref) for one in (a, b, session("c"))] == [None, Record.of(b), None]
        clock.now = LATER
        assert await store.find(b.ref) is None
        assert await store.sessions(ALICE, audience=AUDIENCE) == []

    async def test_recording_again_changes_nothing(self, store: Store) -> None:
        """It revives nothing that was ended, before or after it was recorded."""
        a, b = session("a"), session("b")
        await store.register(Record.of(a))
        await store.register(replace(Record.of(a), subject=BOB))
        assert await store.find(a.ref) == Record.of(a)
        await revoke(store, a)
        await store.register(Record.of(a))
        await revoke(store, b)
        await store.register(Record.of(b))
        assert [await store.touch(one, idle_timeout=None) for one in (a, b)] == [Standing.ENDED] * 2
        assert await store.sessions(ALICE, audience=AUDIENCE) == []

    async def test_a_session_without_a_record_is_lost(self, store: Store) -> None:
        """It was not made there, or its end was long ago; where it was revoked, it has ended."""
        assert await store.touch(session(), idle_timeout=None) is Standing.LOST
        await store.register(Record.of(session()))
        await revoke(store, session())
        await store.purge(session().ref)
        assert await store.touch(session(), idle_timeout=None) is Standing.ENDED

    @pytest.mark.parametrize("idle_timeout", [1, 59, 60, 300, 1800])
    async def test_a_session_is_idle_after_its_time_and_the_resolution(
        self, store: Store, clock: Clock, idle_timeout: int
    ) -> None:
        """Each use counts, wherever it falls between two notes; being asked about or refused is not a use."""
        await store.register(Record.of(session()))
        for part in (0.99, 0.01, 0.5, 0.99):
            clock.now += idle_timeout * part
            assert await store.touch(session(), idle_timeout=idle_timeout) is Standing.LIVE
        clock.now += idle_timeout * 0.5
        assert await store.status(session()) is Standing.LIVE
        clock.now += idle_timeout * 0.5 + resolution(idle_timeout)
        for _ in range(3):
            assert await store.touch(session(), idle_timeout=idle_timeout) is Standing.IDLE

    @pytest.mark.parametrize("idle_timeout", [None, 59, 300])
    async def test_a_use_is_on_record_within_the_resolution(
        self, store: Store, clock: Clock, idle_timeout: int | None
    ) -> None:
        """Not every use has to be written. Without an idle timeout a session lives until it expires."""
        await store.register(Record.of(session()))
        for step in (1, 7, 40, 13, 55):
            clock.now += step
            assert await store.touch(session(), idle_timeout=idle_timeout) is Standing.LIVE
            found = await store.find(session().ref)
            assert found is not None
            assert clock.now - resolution(idle_timeout) <= found.seen_at <= clock.now
        clock.now = LATER - 1
        assert await store.touch(session(), idle_timeout=None) is Standing.LIVE
        assert await claim(store, idle_timeout=None) == []

    async def test_an_idle_session_ends_when_it_is_claimed(self, store: Store, clock: Clock) -> None:
        """Nothing revives it, its data cannot be changed, and a later revocation was not what ended it."""
        a = session()
        await store.register(Record.of(a))
        await store.write(namespace(a), "k", b"1")
        clock.now = START + 30
        assert await claim(store, idle_timeout=31) == []
        clock.now = START + 31
        assert await claim(store, idle_timeout=31) == [Ended(Record.of(a), "idle")]
        assert [await store.touch(a, idle_timeout=timeout) for timeout in (31, None)] == [Standing.ENDED] * 2
        assert await store.status(a) is Standing.ENDED
        assert await revoke(store, a) is False
        assert await store.find(a.ref) is None
        with pytest.raises(DataGone):
            await store.write(namespace(a), "k", b"2")

    async def test_who_ends_a_session_has_its_lease(self, store: Store, clock: Clock) -> None:
        """Then it goes to another, with the first reason, as that one may have died; a new revocation moves neither."""
        await store.register(Record.of(session()))
        assert await revoke(store, session(), "logout", lease=30) is True
        clock.now = START + 29
        await revoke(store, session(), "again", lease=30)
        assert await claim(store) == []
        for lease_ends_at in (START + 30, START + 60):
            clock.now = lease_ends_at - 1
            assert await claim(store) == []
            clock.now = lease_ends_at
            assert await claim(store, lease=30) == [Ended(Record.of(session()), "logout")]

    async def test_a_lease_of_nothing_leaves_it_to_another_at_once(self, store: Store, clock: Clock) -> None:
        """What was not recorded is never claimed, and what was purged never again; its revocation stays."""
        await store.register(Record.of(session("a")))
        for name in "ab":
            await revoke(store, session(name), "support", lease=0)
        assert await claim(store) == [Ended(Record.of(session("a")), "support")]
        for _ in range(2):
            await store.purge(session("a").ref)
        assert await claim(store) == []
        assert await store.status(session("a")) is Standing.ENDED
        clock.now = LATER
        assert await claim(store) == []

    async def test_an_expired_session_may_still_be_revoked(self, store: Store, clock: Clock) -> None:
        """The request that ends it came in time; its reason is the one that is kept."""
        await store.register(Record.of(session()))
        clock.now = LATER + 1
        assert await revoke(store, session(), "deleted", lease=30) is True
        assert await claim(store) == []
        clock.now = LATER + 31
        assert await claim(store) == [Ended(Record.of(session()), "deleted")]
