"""The contract of revocations and records as tests; `_store_contract` puts all parts together.

Each test checks one guarantee, with a day-old store and a clock that only the test moves.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import anyio
import msgspec
import pytest

from .._errors import DataGone, Refusal
from .._session.claims import AUDIENCE, SESSION, Claims
from .._session.data import Namespace
from ..stores._base import Ended, Record, SessionStatus, Store

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


def session(
    name: str = "a", *, issued_at: float = START, expires_at: int = LATER, subject: str | None = ALICE
) -> Claims:
    """Return the claims of a session's token."""
    of: dict[str, Any] = {"issuer": AUDIENCE, "audience": AUDIENCE, "jti": name.ljust(22, "A")}
    return Claims(kind=SESSION, issued_at=issued_at, expires_at=expires_at, subject=subject, **of)


def namespace(claims: Claims, *, max_bytes: int = 1000) -> Namespace:
    """Return a session's place for data."""
    return Namespace(claims.ref, claims.expires_at, max_bytes)


async def register(store: Store, *sessions: Claims, **options: Any) -> None:
    """Record sessions."""
    for one in sessions:
        await store.register(Record.of(one), **options)


async def listed(store: Store, subject: str = ALICE, audience: str = AUDIENCE, **options: Any) -> list[Record]:
    """Return a principal's sessions."""
    return await store.list_sessions(subject=subject, audience=audience, **{"limit": 1000, **options})


async def revoke(store: Store, claims: Claims, reason: str = "deleted", *, lease: float | None = 30) -> bool:
    """End a session."""
    return await store.revoke(Record.of(claims), reason=reason, lease=lease)


async def claim(store: Store, **options: Any) -> list[Ended]:
    """Lease the sessions that ended."""
    return await store.claim_ended(**{"audience": AUDIENCE, "idle_timeout": None, "lease": 30, "limit": 100, **options})


async def statuses_in(store: Store, claims: Sequence[Claims], **options: Any) -> list[SessionStatus]:
    """Return the status of each session."""
    return [found.status for found in await store.look_up(*claims, **options)]


async def status_in(store: Store, claims: Claims) -> SessionStatus:
    """Return the status of a session."""
    (found,) = await statuses_in(store, [claims])
    return found


async def touch_in(store: Store, claims: Claims, *, idle_timeout: int | None) -> SessionStatus:
    """Use a session, and return its status."""
    (found,) = await statuses_in(store, [claims], touch=True, idle_timeout=idle_timeout)
    return found


async def at_once(calls: Sequence[Callable[[], Awaitable[Any]]]) -> list[Any]:
    """Return what parallel calls return, in their order."""
    results: list[Any] = [None] * len(calls)

    async def call(place: int) -> None:
        results[place] = await calls[place]()

    async with anyio.create_task_group() as group:
        for place in range(len(calls)):
            group.start_soon(call, place)
    return results


async def refused(error: type[Exception], *calls: Callable[[], Awaitable[Any]], match: str | None = None) -> None:
    """Make calls, each of which raises an error."""
    for call in calls:
        with pytest.raises(error, match=match):
            await call()


class Fixtures:
    """The fixtures of the tests; a store's own class overrides `make_store`."""

    leeway = 60  # seconds for which the store keeps expired entries, for clocks that disagree

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
        """A function that returns unopened stores, all at one place that no other test uses."""
        raise NotImplementedError("override the fixture make_store: it returns a callable that makes a store")

    @pytest.fixture
    async def store(self, make_store: Callable[[], Store], clock: Clock) -> AsyncIterator[Store]:
        """A store that was opened a day ago, so that it vouches for today's sessions."""
        made = make_store()
        clock.now -= DAY
        await made.open()
        clock.now += DAY
        yield made
        await made.close()


@pytest.mark.anyio
class RevocationContract(Fixtures):
    """Opening, closing, and which sessions have ended."""

    async def test_a_store_that_was_never_opened_opens_itself(self, make_store: Callable[[], Store]) -> None:
        """It does at its first use, a question or a change; closing it without any is not an error.

        Opening one twice is the same as once, and loses nothing.
        """
        asked, changed, unused = make_store(), make_store(), make_store()
        await asked.register_at_epoch(session())
        assert await status_in(asked, session()) is SessionStatus.LIVE
        assert await revoke(changed, session()) is True
        for _ in range(2):
            await changed.open()
            assert await status_in(changed, session()) is SessionStatus.ENDED
        for one in (asked, changed, unused):
            await one.close()

    async def test_a_revocation_is_seen_as_soon_as_it_returns(self, store: Store) -> None:
        """Nothing is stored for a live session. Many are asked about in one trip, in the order of the questions."""
        a, b = session("a"), session("b")
        assert await statuses_in(store, [a, b, a]) == [SessionStatus.LIVE] * 3
        assert await revoke(store, b) is True
        assert await statuses_in(store, [a, b, a]) == [SessionStatus.LIVE, SessionStatus.ENDED, SessionStatus.LIVE]
        assert [await status_in(store, one) for one in (a, b)] == [SessionStatus.LIVE, SessionStatus.ENDED]
        assert await statuses_in(store, []) == []

    async def test_only_one_call_ends_a_session(self, store: Store) -> None:
        """One after another or in parallel, also of one that expires meanwhile; different ones lose nothing."""
        assert [await revoke(store, session("a")) for _ in range(2)] == [True, False]
        assert (await at_once([partial(revoke, store, session("b"))] * 20)).count(True) == 1
        assert await revoke(store, session("c", expires_at=START - 1)) is True
        many = [session("a"), session("b"), *(session(f"s{n}", expires_at=LATER + n) for n in range(50))]
        await at_once([partial(revoke, store, one) for one in many])
        assert await statuses_in(store, many) == [SessionStatus.ENDED] * 52

    async def test_what_ends_a_session_lasts_as_long_as_it_and_the_leeway(self, store: Store, clock: Clock) -> None:
        """What is forgotten too early is a deleted session that works again, for a clock that is behind, too.

        A cut-off lasts until the last session concerned has ended: a later one that may go sooner does not shorten it.
        """
        a, old = session("a"), session("b", issued_at=START - 1, expires_at=LATER + self.leeway)
        await revoke(store, a)
        await store.revoke_before(START - 1, audience=AUDIENCE, subject=ALICE, expires_at=LATER)
        await store.revoke_before(START, audience=AUDIENCE, subject=ALICE, expires_at=START + 10)
        for now in (*range(START, LATER, 60), LATER + self.leeway - 1):
            clock.now = now
            await revoke(store, session(f"short-{now}", expires_at=now + 1))
            assert await statuses_in(store, [a, old]) == [SessionStatus.ENDED] * 2

    @pytest.mark.parametrize("subject", [ALICE, None])
    async def test_a_cut_off_ends_what_was_issued_before(self, store: Store, subject: str | None) -> None:
        """Of several, in any order, the latest counts; one for a principal does not hide one for all.

        What was issued in that second or later lives on, and what others have, or the same one of another audience.
        """
        for moment in (START - 10, START, START - 5):
            await store.revoke_before(moment, audience=AUDIENCE, subject=subject, expires_at=LATER)
        await store.revoke_before(START - 20, audience=AUDIENCE, subject=BOB, expires_at=LATER)
        for name, whose in (("a", ALICE), ("b", BOB), ("c", None)):
            before, then, theirs = (session(f"{name}{n}", issued_at=START - n % 2, subject=whose) for n in (1, 2, 3))
            theirs = msgspec.structs.replace(theirs, audience="theirs")
            await register(store, before, theirs)
            ended = SessionStatus.ENDED if subject in {None, whose} else SessionStatus.LIVE
            assert await statuses_in(store, [before, then, theirs]) == [ended, SessionStatus.LIVE, SessionStatus.LIVE]
            assert await status_in(store, before) is await touch_in(store, before, idle_timeout=None) is ended
            assert await store.get(before.ref) == (Record.of(before) if ended is SessionStatus.LIVE else None)
            assert await store.get(theirs.ref) == Record.of(theirs)


@pytest.mark.anyio
class RecordContract(Fixtures):
    """The records of tracked sessions, and the sessions whose `on_end` is due."""

    async def test_a_record_is_given_back_as_it_was_noted(self, store: Store, clock: Clock) -> None:
        """The trace of its start comes back to who lists it, gets it or claims its end; not after its very end."""
        bare, trace = session("bare", subject=None), f"00-{'ab' * 16}-{'cd' * 8}-01"
        noted = replace(Record.of(session("traced")), trace=trace, principal_hashes="of alice")
        await store.register(noted)
        await register(store, bare)
        assert await listed(store) == [await store.get(noted.ref)] == [noted]
        assert await store.get(bare.ref) == Record.of(bare)
        assert await touch_in(store, bare, idle_timeout=None) is SessionStatus.LIVE
        clock.now = LATER - 1
        assert await listed(store) == [noted]
        clock.now = LATER
        assert [await listed(store), await store.get(noted.ref), await store.get("ses_other")] == [[], None, None]
        ended = await claim(store)
        whole = [Ended(Record.of(bare), "expired"), Ended(noted, "expired")]
        assert sorted(ended, key=lambda one: one.record.trace or "") == whole

    async def test_sessions_are_listed_in_pages(self, store: Store) -> None:
        """Oldest first, in whatever order they were recorded; those of one principal, or those of all.

        A page resumes after the last one of the page before, by its `Record.position`, ended or not.
        """
        records = [Record.of(session(f"s{n}", issued_at=START + n // 2 / 1000)) for n in (2, 0, 3, 1, 4)]
        for record in records:
            await store.register(record)
        others = [Record.of(session("b", subject=BOB)), Record.of(session("c", subject=None))]
        for record in (*others, replace(Record.of(session("x")), audience="other")):
            await store.register(record)
        of_all = partial(store.list_sessions, audience=AUDIENCE)
        pages_of = ((partial(listed, store), records), (of_all, [*records, *others]))
        for pages, whose in pages_of:
            in_order = sorted(whose, key=lambda one: one.position)
            assert await pages(limit=1000) == in_order
            assert await pages(limit=2) == in_order[:2]
            assert await pages(after=in_order[3].position, limit=1000) == in_order[4:]
        for record in records[:2]:
            await store.revoke(record, reason="deleted", lease=30)
            assert await store.get(record.ref) is None
        for pages, whose in pages_of:
            left = sorted((one for one in whose if one not in records[:2]), key=lambda one: one.position)
            assert await pages(limit=2) == left[:2]
            assert await pages(after=left[0].position, limit=2) == left[1:3]
        assert await listed(store, "unknown") == []

    async def test_what_was_cut_off_is_listed_for_who_ends_it_by_name(self, store: Store) -> None:
        """Page by page, until that is done; what was issued later lives on."""
        cut, then = [session(f"s{n}", issued_at=START - 1) for n in range(3)], session("then")
        await register(store, *cut, then)
        await store.revoke_before(START, audience=AUDIENCE, subject=ALICE, expires_at=LATER)
        whole = partial(listed, store, with_cut_off=True)
        assert await listed(store) == await whole(after=(START, "")) == [Record.of(then)]
        assert {one.ref for one in await whole(limit=3)} == {one.ref for one in cut}
        for one in cut:
            await revoke(store, one, lease=0)
        assert await whole() == [Record.of(then)]
        assert len(await claim(store)) == 3

    async def test_recording_again_changes_nothing(self, store: Store) -> None:
        """It revives nothing that was ended, before or after it was recorded, and purged or not.

        A session without a record is lost: it was not made there, or its end was long ago.
        """
        a, b = session("a"), session("b")
        assert await touch_in(store, a, idle_timeout=None) is SessionStatus.UNRECORDED
        await register(store, a)
        await store.register(replace(Record.of(a), subject=BOB))
        assert await store.get(a.ref) == Record.of(a)
        for one in (a, b):
            await revoke(store, one)
            await register(store, one)
        for _ in range(2):
            assert [await touch_in(store, one, idle_timeout=None) for one in (a, b)] == [SessionStatus.ENDED] * 2
            assert await listed(store) == []
            await store.purge(a.ref)

    async def test_an_idle_session_ends_when_it_is_claimed(self, store: Store, clock: Clock) -> None:
        """Nothing revives it, its data cannot be changed, and a later revocation was not what ended it."""
        a = session()
        await register(store, a)
        await store.write(namespace(a), "k", b"1")
        clock.now = START + 30
        assert await claim(store, idle_timeout=31) == []
        clock.now = START + 31
        assert await claim(store, idle_timeout=31) == [Ended(Record.of(a), "idle")]
        assert [await touch_in(store, a, idle_timeout=timeout) for timeout in (31, None)] == [SessionStatus.ENDED] * 2
        assert await status_in(store, a) is SessionStatus.ENDED
        assert await revoke(store, a) is False
        assert await store.get(a.ref) is None
        await refused(DataGone, partial(store.write, namespace(a), "k", b"2"))

    async def test_a_shorter_idle_timeout_counts_at_once(self, store: Store, clock: Clock) -> None:
        """Also for sessions that were used, and looked at, under a longer one: the next sweep reports their end."""
        await register(store, *(names := [session(name) for name in "ab"]))
        clock.now = START + 100
        assert await touch_in(store, names[1], idle_timeout=900) is SessionStatus.LIVE
        assert await claim(store, idle_timeout=900) == []
        clock.now = START + 105
        ended = await claim(store, idle_timeout=4)
        assert {(one.record.ref, one.reason) for one in ended} == {(one.ref, "idle") for one in names}
        await store.purge(*(one.ref for one in names))
        assert [await listed(store), await store.count(audience=AUDIENCE)] == [[], 0]

    @pytest.mark.parametrize("ends_at", [START, LATER + 1])
    async def test_who_ends_a_session_has_its_lease(self, store: Store, clock: Clock, ends_at: int) -> None:
        """Then it goes to another, with the first reason, as that one may have died; a new revocation moves neither.

        An expired session may still be revoked. It stays ended after its expiry, as long as its `on_end` is due.
        """
        await register(store, session())
        clock.now = ends_at
        assert await revoke(store, session(), "logout", lease=30) is True
        clock.now = ends_at + 29
        await revoke(store, session(), "again", lease=30)
        for lease_ends_at in (ends_at + 30, ends_at + 60):
            clock.now = lease_ends_at - 1
            assert await claim(store) == []
            clock.now = lease_ends_at
            assert await claim(store, lease=30) == [Ended(Record.of(session()), "logout")]
        clock.now = LATER + HOUR
        await revoke(store, session("b", expires_at=LATER + DAY))
        assert await touch_in(store, session(), idle_timeout=None) is SessionStatus.ENDED
        assert await revoke(store, session()) is False

    async def test_without_a_lease_a_session_is_purged_at_once(self, store: Store) -> None:
        """Where there is no `on_end`: it is refused, its data is gone, and no one claims it. Only one call ends it.

        A lease that runs is not cut short: its `on_end` may read the data.
        """
        a, b = session("a"), session("b")
        await register(store, a)
        for one in (a, b):
            await store.write(namespace(one), "k", b"1")
            assert [await revoke(store, one, lease=None) for _ in range(2)] == [True, False]
            assert await status_in(store, one) is await touch_in(store, one, idle_timeout=None) is SessionStatus.ENDED
            assert await store.read(namespace(one), "k") is None
            await refused(DataGone, partial(store.write, namespace(one), "k", b"2"))
        assert [await listed(store), await store.count(audience=AUDIENCE), await claim(store)] == [[], 0, []]
        await register(store, c := session("c"))
        await store.write(namespace(c), "k", b"1")
        assert [await revoke(store, c, lease=lease) for lease in (30, None)] == [True, False]
        assert await store.read(namespace(c), "k") == b"1"

    @pytest.mark.parametrize("subject", [ALICE, None])
    async def test_one_principal_s_flood_leaves_room_for_others(self, store: Store, subject: str | None) -> None:
        """Of many creates as many succeed as may; others go on. All without a principal count as one."""
        creates = [partial(register, store, session(f"{n}", subject=subject), max_sessions=20) for n in range(100)]
        for create in creates[:20]:
            await create()
        await at_once([partial(refused, Refusal, create, match="Too many sessions") for create in creates[20:]])
        others = session("b", subject=BOB), session("c", subject=None if subject else ALICE)
        await register(store, *others, max_sessions=20)
        assert await store.count(audience=AUDIENCE) == 22

    @pytest.mark.parametrize(("subject", "moment"), [(ALICE, START + 1), (None, START + HOUR)])
    async def test_what_has_ended_makes_room_at_once(self, store: Store, subject: str | None, moment: int) -> None:
        """Cut off or finished; another audience's are not counted, and what is known already stays recorded."""
        one, other = session("a", subject=subject), session("b", subject=subject)
        await store.register(replace(Record.of(session("x", subject=subject)), audience="other"), max_sessions=1)
        await register(store, one, one, max_sessions=1)
        await refused(Refusal, partial(register, store, other, max_sessions=1), match="Too many sessions")
        assert await store.get(other.ref) is None
        await revoke(store, one)
        await store.purge(one.ref)
        await register(store, other, max_sessions=1)
        await store.revoke_before(moment, audience=AUDIENCE, subject=subject, expires_at=LATER)
        ends = {"issued_at": moment, "expires_at": moment + HOUR}
        later, last = (session(name, subject=subject, **ends) for name in "cd")
        await register(store, later, max_sessions=1)
        await refused(Refusal, partial(register, store, last, max_sessions=1), match="Too many sessions")
