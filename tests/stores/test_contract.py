"""What every store promises, shown on each of `STORES`: the manual of `stores/base.py` and `data.py`.

A test that asks for `other` runs on those stores that share what they hold.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
import msgspec
import pytest
from clients import START, Clock

from mcp_sessions._server.sessions import CAPABILITIES_KEY, STATE_KEY
from mcp_sessions._session.claims import AUDIENCE, Claims
from mcp_sessions._session.data import Namespace
from mcp_sessions.errors import DataGone, DataNotInteger, DataTooLarge
from mcp_sessions.stores.base import Ended, Record, Standing, Store, resolution
from stores import Kind, Place, revoke

pytest_plugins = ["on_every_store"]

HOUR = 3600
LATER = START + HOUR
LEEWAY = 60
ALICE, BOB = "alice".ljust(22, "A"), "bob".ljust(22, "A")
MOST = 2**63 - 1


@pytest.fixture
def anyio_backend(running: tuple[str, str]) -> str:
    """Each store runs on the event loops that it knows, which for some is asyncio alone."""
    return running[1]


def session(name: str = "a", *, issued_at: int = START, expires_at: int = LATER, subject: str | None = ALICE) -> Claims:
    """What a session's token says."""
    return Claims(
        kind="session", kid="k", jti=name.ljust(22, "A"), issued_at=issued_at, expires_at=expires_at, subject=subject
    )


def shelf(claims: Claims, *, max_bytes: int = 1000) -> Namespace:
    """Its place for data."""
    return Namespace(claims.ref, claims.expires_at, max_bytes)


async def take(store: Store, *, idle_timeout: int | None = None, lease: float = 30, limit: int = 100) -> list[Ended]:
    return await store.claim_ended(audience=AUDIENCE, idle_timeout=idle_timeout, lease=lease, limit=limit)


async def at_once(calls: Sequence[Callable[[], Awaitable[Any]]]) -> list[Any]:
    """What parallel calls return, in their order."""
    results: list[Any] = [None] * len(calls)

    async def call(n: int) -> None:
        results[n] = await calls[n]()

    async with anyio.create_task_group() as group:
        for n in range(len(calls)):
            group.start_soon(call, n)
    return results


# --- opening and closing -------------------------------------------------------------------------


async def test_opening_twice_is_the_same_as_once(store: Store) -> None:
    """And loses nothing."""
    await store.open()
    await revoke(store, session())
    await store.open()
    assert await store.status(session()) is Standing.ENDED


async def test_a_store_that_was_never_opened_opens_itself(kind: Kind, place: Place) -> None:
    """At its first use, be it a question or a change."""
    asked, changed = await kind.make(place), await kind.make(place)
    assert await asked.status(session()) is Standing.LIVE
    assert await revoke(changed, session()) is True
    await asked.close()
    await changed.close()


async def test_closing_what_was_never_opened_is_no_error(kind: Kind, place: Place) -> None:
    """A server that fails to start closes what it has."""
    await (await kind.make(place)).close()


async def test_what_is_kept_outlives_the_store_object(kind: Kind, place: Place, other: Store) -> None:
    """Revocations, cut-offs, records and data are there after a restart."""
    a, b, c = session("a"), session("b", subject=BOB), session("c", issued_at=START + 1)
    first = await kind.make(place)
    await first.open()
    await first.register(Record.of(c))
    await first.write(shelf(c), "cart", b"[1]")
    await revoke(first, a)
    await first.revoke_before(START + 1, audience=AUDIENCE, subject=BOB, until=LATER)
    await first.close()
    await other.close()
    second = await kind.make(place)
    assert await second.statuses([a, b, c]) == [Standing.ENDED, Standing.ENDED, Standing.LIVE]
    assert await second.find(c.ref) == Record.of(c)
    assert await second.read(shelf(c), "cart") == b"[1]"
    await second.close()


# --- standing and revocation ---------------------------------------------------------------------


async def test_what_was_never_revoked_is_live(store: Store) -> None:
    """Nothing is stored for a live session, so an unknown one is a live one."""
    assert await store.status(session()) is Standing.LIVE


async def test_a_revocation_is_seen_as_soon_as_it_returns(store: Store) -> None:
    """And it touches no other session, not even one that ends at the same moment."""
    assert await revoke(store, session("a")) is True
    assert await store.status(session("a")) is Standing.ENDED
    assert await store.status(session("b")) is Standing.LIVE


async def test_a_revocation_is_seen_at_once_by_who_shares_the_store(store: Store, other: Store) -> None:
    """Also where the other one was asked before, and has said that the session lives."""
    assert await other.status(session()) is Standing.LIVE
    await revoke(store, session())
    assert await other.status(session()) is Standing.ENDED
    assert await revoke(other, session()) is False


async def test_only_one_call_ends_a_session(store: Store) -> None:
    """A delete that is tried again succeeds again, and says that it was not the one."""
    assert await revoke(store, session()) is True
    assert await revoke(store, session()) is False
    assert await store.status(session()) is Standing.ENDED


async def test_of_parallel_revocations_one_ends_the_session(store: Store, other: Store) -> None:
    """However many workers are asked at the same time."""
    done = await at_once([partial(revoke, one, session()) for one in (store, other) for _ in range(10)])
    assert done.count(True) == 1


async def test_many_are_asked_about_in_one_trip(store: Store) -> None:
    """The answers come in the order of the questions, which may repeat, and none are no answers."""
    a, b = session("a"), session("b")
    await revoke(store, b)
    assert await store.statuses([a, b, a]) == [Standing.LIVE, Standing.ENDED, Standing.LIVE]
    assert await store.statuses([]) == []


async def test_a_revocation_lasts_as_long_as_its_token(store: Store, clock: Clock) -> None:
    """However many others come and go: what is forgotten too early is a deleted session that works again."""
    await revoke(store, session("a"))
    for step in range(60):
        clock.now = START + 60 * step
        await revoke(store, session(f"short-{step}", expires_at=int(clock.now) + 1))
        assert await store.status(session("a")) is Standing.ENDED
    clock.now = LATER - 1
    assert await store.status(session("a")) is Standing.ENDED


async def test_a_revocation_outlives_its_token_by_the_leeway(store: Store, clock: Clock) -> None:
    """For another worker's clock may be behind."""
    await revoke(store, session("a"))
    clock.now = LATER + LEEWAY - 1
    await revoke(store, session("b", expires_at=LATER + HOUR))
    assert await store.status(session("a")) is Standing.ENDED


async def test_an_end_in_the_past_is_no_error(store: Store) -> None:
    """A session that expires while it is being deleted is deleted."""
    assert await revoke(store, session(expires_at=START - 1)) is True


async def test_many_revocations_at_once_are_all_kept(store: Store) -> None:
    """Parallel deletes lose nothing."""
    many = [session(f"s{n}", expires_at=LATER + n) for n in range(50)]
    await at_once([partial(revoke, store, one) for one in many])
    assert await store.statuses(many) == [Standing.ENDED] * 50


# --- all sessions before a moment ----------------------------------------------------------------


async def test_a_cut_off_ends_what_a_principal_was_issued_before(store: Store) -> None:
    """Not what was issued in that second or later, and not what others have."""
    before, then = session("a", issued_at=START - 1), session("b", issued_at=START)
    others, nobodys = (session(issued_at=START - 1, subject=subject) for subject in (BOB, None))
    await store.revoke_before(START, audience=AUDIENCE, subject=ALICE, until=LATER)
    assert await store.status(before) is Standing.ENDED
    assert await store.statuses([then, others, nobodys]) == [Standing.LIVE] * 3


async def test_a_cut_off_for_everybody_ends_what_anybody_was_issued_before(store: Store) -> None:
    """Anonymous sessions too."""
    before = [session(issued_at=START - 1, subject=subject) for subject in (ALICE, BOB, None)]
    then = session(issued_at=START)
    await store.revoke_before(START, audience=AUDIENCE, subject=None, until=LATER)
    assert await store.statuses(before) == [Standing.ENDED] * 3
    assert await store.status(then) is Standing.LIVE


@pytest.mark.parametrize("subject", [ALICE, None])
async def test_of_several_cut_offs_the_latest_counts(store: Store, subject: str | None) -> None:
    """In whatever order they come; and one for somebody does not hide one for everybody."""
    for moment in (START - 10, START, START - 5):
        await store.revoke_before(moment, audience=AUDIENCE, subject=subject, until=LATER)
    await store.revoke_before(START - 20, audience=AUDIENCE, subject=BOB, until=LATER)
    assert await store.status(session(issued_at=START - 1)) is Standing.ENDED
    assert await store.status(session(issued_at=START)) is Standing.LIVE


async def test_a_cut_off_is_seen_at_once_by_who_shares_the_store(store: Store, other: Store) -> None:
    """As a revocation is."""
    assert await other.status(session(issued_at=START - 1)) is Standing.LIVE
    await store.revoke_before(START, audience=AUDIENCE, subject=ALICE, until=LATER)
    assert await other.status(session(issued_at=START - 1)) is Standing.ENDED


async def test_a_cut_off_lasts_until_the_last_session_concerned_has_ended(store: Store, clock: Clock) -> None:
    """And the leeway longer; a later one that may go sooner does not shorten it."""
    old = session(issued_at=START - 1, expires_at=LATER + LEEWAY)
    await store.revoke_before(START - 1, audience=AUDIENCE, subject=ALICE, until=LATER)
    await store.revoke_before(START, audience=AUDIENCE, subject=ALICE, until=START)
    clock.now = LATER + LEEWAY - 1
    await revoke(store, session("b", expires_at=LATER + HOUR))
    assert await store.status(old) is Standing.ENDED


async def test_a_cut_off_leaves_records_as_they_are(store: Store, clock: Clock) -> None:
    """Its sessions are told as ended and are nobody's to list, but their `on_end` comes when they expire."""
    a = session(issued_at=START - 1)
    await store.register(Record.of(a))
    await store.revoke_before(START, audience=AUDIENCE, subject=ALICE, until=LATER)
    assert await store.touch(a, idle_timeout=None) is Standing.ENDED
    assert await store.sessions(ALICE, audience=AUDIENCE) == []
    assert await store.find(a.ref) is None
    assert await take(store) == []
    clock.now = LATER
    assert await take(store) == [Ended(Record.of(a), "expired")]


# --- records -------------------------------------------------------------------------------------


async def test_a_recorded_session_is_found_by_its_name(store: Store) -> None:
    """As it was recorded; an unknown one is not."""
    await store.register(Record.of(session("a")))
    assert await store.find(session("a").ref) == Record.of(session("a"))
    assert await store.find(session("b").ref) is None


async def test_an_anonymous_session_can_be_recorded(store: Store) -> None:
    """It has no subject, and is found by its name alone."""
    a = session(subject=None)
    await store.register(Record.of(a))
    assert await store.find(a.ref) == Record.of(a)
    assert await store.touch(a, idle_timeout=None) is Standing.LIVE


async def test_a_principals_sessions_are_listed_oldest_first(store: Store) -> None:
    """In whatever order they were recorded; nobody else's."""
    made = [session(f"s{n}", issued_at=START - n) for n in (2, 5, 1, 4, 3)]
    for one in made:
        await store.register(Record.of(one))
    await store.register(Record.of(session("bobs", subject=BOB)))
    assert await store.sessions(ALICE, audience=AUDIENCE) == [
        Record.of(one) for one in sorted(made, key=lambda one: one.issued_at)
    ]
    assert await store.sessions("nobody", audience=AUDIENCE) == []


async def test_sessions_and_forks_are_listed_in_pages(store: Store) -> None:
    """Those of one second by their names; a page goes on after the last of the one before, which may have ended."""
    records = [
        replace(Record.of(session(f"s{n}", issued_at=START + n // 2)), root=session("root").ref) for n in range(5)
    ]
    for record in records:
        await store.register(record)
    in_order = sorted(records, key=lambda one: one.position)
    by_sessions, by_forks = partial(store.sessions, ALICE, audience=AUDIENCE), partial(store.forks, session("root").ref)
    for pages in (by_sessions, by_forks):
        assert await pages(limit=2) == in_order[:2]
        assert await pages(after=in_order[1].position, limit=2) == in_order[2:4]
        assert await pages(after=in_order[3].position) == in_order[4:]
    await revoke(store, session("s0"))
    await revoke(store, session("s1"))
    for pages in (by_sessions, by_forks):
        assert await pages(limit=2) == await pages(after=in_order[1].position, limit=2) == in_order[2:4]


async def test_what_was_cut_off_is_listed_for_who_ends_it_by_name(store: Store) -> None:
    """Until that is done, page by page; what was issued later is in no danger."""
    cut, then = [session(f"s{n}", issued_at=START - 1) for n in range(3)], session("then")
    for one in (*cut, then):
        await store.register(Record.of(one))
    await store.revoke_before(START, audience=AUDIENCE, subject=ALICE, until=LATER)
    all_four = partial(store.sessions, ALICE, audience=AUDIENCE, cut_off=True)
    assert await store.sessions(ALICE, audience=AUDIENCE) == await all_four(after=(START, "")) == [Record.of(then)]
    assert {one.ref for one in await all_four(limit=3)} == {one.ref for one in cut}
    for one in cut:
        await revoke(store, one, lease=0)
    assert await all_four() == [Record.of(then)]
    assert len(await take(store)) == 3


async def test_the_forks_of_a_lineage_are_listed_oldest_first(store: Store) -> None:
    """Of every generation, whoever they belong to; neither the root itself nor another lineage's."""
    root, other = session("root", subject=None), session("other")
    forks = [
        replace(Record.of(session(f"f{n}", issued_at=START + n, subject=subject)), root=root.ref)
        for n, subject in ((2, None), (1, ALICE), (3, None))
    ]
    for record in (Record.of(root), *forks, replace(Record.of(session("else")), root=other.ref)):
        await store.register(record)
    assert await store.forks(root.ref) == [forks[1], forks[0], forks[2]]
    assert await store.find(forks[0].ref) == forks[0]
    assert (
        await store.forks(forks[0].ref)
        == await store.forks(ALICE)
        == await store.sessions(root.ref, audience=AUDIENCE)
        == []
    )


async def test_a_record_is_given_back_as_it_was_noted(store: Store, clock: Clock) -> None:
    """With its place in a lineage and the trace of its start, to who lists it, finds it or takes its end."""
    root, trace = session("root"), f"00-{'ab' * 16}-{'cd' * 8}-01"
    noted = replace(Record.of(session("fork")), root=root.ref, trace=trace)
    await store.register(noted)
    assert (
        await store.sessions(ALICE, audience=AUDIENCE)
        == await store.forks(root.ref)
        == [await store.find(noted.ref)]
        == [noted]
    )
    clock.now = LATER
    assert await take(store) == [Ended(noted, "expired")]


async def test_an_ended_fork_is_not_listed(store: Store, clock: Clock) -> None:
    """Nor one that was forgotten or cut off, nor an expired one; a root that has ended still has its forks."""
    root = session("root")
    a, b, c = (
        replace(Record.of(session(f"f{n}", issued_at=START - n, expires_at=LATER - n)), root=root.ref)
        for n in (3, 2, 1)
    )
    for record in (Record.of(root), a, b, c):
        await store.register(record)
    await revoke(store, root)
    await store.purge(root.ref)
    assert await store.forks(root.ref) == [a, b, c]
    await store.revoke(a.ref, audience=a.audience, expires_at=a.expires_at, reason="deleted", lease=0)
    assert [ended.record for ended in await take(store)] == [a]
    await store.purge(a.ref)
    clock.now = b.expires_at
    assert await store.forks(root.ref) == [c]
    await store.revoke_before(START + 1, audience=AUDIENCE, subject=ALICE, until=LATER)
    assert await store.forks(root.ref) == []


async def test_an_ended_session_is_neither_listed_nor_found(store: Store) -> None:
    """From the moment on at which it was revoked."""
    a, b = session("a"), session("b")
    for one in (a, b):
        await store.register(Record.of(one))
    await revoke(store, a)
    assert await store.sessions(ALICE, audience=AUDIENCE) == [Record.of(b)]
    assert await store.find(a.ref) is None


async def test_an_expired_session_is_neither_listed_nor_found(store: Store, clock: Clock) -> None:
    """From its very end on."""
    await store.register(Record.of(session()))
    clock.now = LATER - 1
    assert await store.find(session().ref) == Record.of(session())
    clock.now = LATER
    assert await store.find(session().ref) is None
    assert await store.sessions(ALICE, audience=AUDIENCE) == []


async def test_recording_again_changes_nothing(store: Store) -> None:
    """Not even what was recorded, and it revives nothing that was ended, before or after it is finished."""
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


async def test_records_are_seen_at_once_by_who_shares_the_store(store: Store, other: Store) -> None:
    """A session that one worker made is used on another."""
    await store.register(Record.of(session()))
    assert await other.touch(session(), idle_timeout=60) is Standing.LIVE
    assert await other.find(session().ref) == Record.of(session())


# --- use and idleness ----------------------------------------------------------------------------


async def test_a_session_without_a_record_is_lost(store: Store) -> None:
    """Where sessions are recorded, what has no record was not made there, or its end was long ago."""
    assert await store.touch(session(), idle_timeout=None) is Standing.LOST


async def test_ended_is_told_before_lost(store: Store) -> None:
    """A revocation stands after its record was forgotten."""
    await store.register(Record.of(session()))
    await revoke(store, session())
    await store.purge(session().ref)
    assert await store.touch(session(), idle_timeout=None) is Standing.ENDED


@pytest.mark.parametrize("idle_timeout", [1, 59, 60, 300, 1800])
async def test_an_unused_session_is_idle_after_its_time_and_the_resolution(
    store: Store, clock: Clock, idle_timeout: int
) -> None:
    """Never earlier than its time, and no later than that and the resolution."""
    await store.register(Record.of(session()))
    clock.now = START + idle_timeout - 0.5
    assert await store.touch(session("b"), idle_timeout=idle_timeout) is Standing.LOST
    clock.now = START + idle_timeout + resolution(idle_timeout)
    assert await store.touch(session(), idle_timeout=idle_timeout) is Standing.IDLE


@pytest.mark.parametrize("idle_timeout", [1, 59, 60, 300, 1800])
async def test_a_used_session_is_not_idle(store: Store, clock: Clock, idle_timeout: int) -> None:
    """Each use counts, wherever it falls between two notes: the next may come just before the time is over."""
    await store.register(Record.of(session()))
    for part in (0.99, 0.01, 0.5, 0.99):
        clock.now += idle_timeout * part
        assert await store.touch(session(), idle_timeout=idle_timeout) is Standing.LIVE
    clock.now += idle_timeout + resolution(idle_timeout)
    assert await store.touch(session(), idle_timeout=idle_timeout) is Standing.IDLE


async def test_without_an_idle_timeout_nothing_is_idle(store: Store, clock: Clock) -> None:
    """Until it expires, a recorded session lives."""
    await store.register(Record.of(session()))
    clock.now = LATER - 1
    assert await store.touch(session(), idle_timeout=None) is Standing.LIVE


@pytest.mark.parametrize("idle_timeout", [None, 59, 300])
async def test_a_use_is_on_record_within_the_resolution(store: Store, clock: Clock, idle_timeout: int | None) -> None:
    """Not every use has to be written."""
    await store.register(Record.of(session()))
    for step in (1, 7, 40, 13, 55):
        clock.now += step
        assert await store.touch(session(), idle_timeout=idle_timeout) is Standing.LIVE
        found = await store.find(session().ref)
        assert found is not None
        assert clock.now - resolution(idle_timeout) <= found.seen_at <= clock.now


async def test_asking_how_a_session_stands_is_no_use_of_it(store: Store, clock: Clock) -> None:
    """Only `seen` keeps it from standing idle."""
    await store.register(Record.of(session()))
    clock.now = START + 40
    assert await store.status(session()) is Standing.LIVE
    assert await store.find(session().ref) == Record.of(session())


async def test_an_idle_session_stays_idle(store: Store, clock: Clock) -> None:
    """Being refused is no use either."""
    await store.register(Record.of(session()))
    clock.now = START + 61
    for _ in range(3):
        assert await store.touch(session(), idle_timeout=30) is Standing.IDLE


# --- sessions whose `on_end` is to be run --------------------------------------------------------


async def test_an_expired_session_is_given_to_one_taker(store: Store, clock: Clock) -> None:
    """With its record, from its end on, and to nobody else while the lease lasts."""
    await store.register(Record.of(session()))
    clock.now = LATER - 1
    assert await take(store) == []
    clock.now = LATER
    assert await take(store, lease=30) == [Ended(Record.of(session()), "expired")]
    clock.now = LATER + 29
    assert await take(store) == []


async def test_an_idle_session_ends_when_it_is_taken(store: Store, clock: Clock) -> None:
    """Nothing revives it, and who revokes it afterwards was not the one who ended it."""
    a = session()
    await store.register(Record.of(a))
    await store.write(shelf(a), "k", b"1")
    clock.now = START + 30
    assert await take(store, idle_timeout=31) == []
    clock.now = START + 31
    assert await take(store, idle_timeout=31) == [Ended(Record.of(a), "idle")]
    assert await store.touch(a, idle_timeout=31) is Standing.ENDED
    assert await store.touch(a, idle_timeout=None) is Standing.ENDED
    assert await store.status(a) is Standing.ENDED
    assert await revoke(store, a) is False
    assert await store.find(a.ref) is None
    with pytest.raises(DataGone):
        await store.write(shelf(a), "k", b"2")


async def test_without_an_idle_timeout_no_idle_session_is_taken(store: Store, clock: Clock) -> None:
    """Only what expired."""
    await store.register(Record.of(session()))
    clock.now = LATER - 1
    assert await take(store, idle_timeout=None) == []


async def test_who_ends_a_session_has_its_lease(store: Store, clock: Clock) -> None:
    """It is given to another, with the reason, when that is over: the first one may have died."""
    await store.register(Record.of(session()))
    assert await revoke(store, session(), "logout", lease=30) is True
    clock.now = START + 29
    assert await take(store) == []
    clock.now = START + 30
    assert await take(store, lease=30) == [Ended(Record.of(session()), "logout")]
    clock.now = START + 59
    assert await take(store) == []
    clock.now = START + 60
    assert await take(store) == [Ended(Record.of(session()), "logout")]


async def test_a_lease_of_nothing_leaves_it_to_another_at_once(store: Store) -> None:
    """For who ends a session from outside of any worker."""
    await store.register(Record.of(session()))
    await revoke(store, session(), "support", lease=0)
    assert await take(store) == [Ended(Record.of(session()), "support")]


async def test_revoking_again_changes_neither_reason_nor_lease(store: Store, clock: Clock) -> None:
    """The first one counts."""
    await store.register(Record.of(session()))
    await revoke(store, session(), "first", lease=30)
    clock.now = START + 29
    await revoke(store, session(), "second", lease=30)
    clock.now = START + 30
    assert await take(store) == [Ended(Record.of(session()), "first")]


async def test_an_expired_session_may_still_be_revoked(store: Store, clock: Clock) -> None:
    """The request that ends it came in time; its reason is the one that is kept."""
    await store.register(Record.of(session()))
    clock.now = LATER + 1
    assert await revoke(store, session(), "deleted", lease=30) is True
    assert await take(store) == []
    clock.now = LATER + 31
    assert await take(store) == [Ended(Record.of(session()), "deleted")]


async def test_a_session_that_was_not_recorded_is_never_taken(store: Store, clock: Clock) -> None:
    """Nothing is known of it but that it ended."""
    await revoke(store, session(), lease=0)
    clock.now = LATER
    assert await take(store) == []


async def test_no_more_are_taken_than_asked_for(store: Store, clock: Clock) -> None:
    """The rest is there for the next taker; each goes to one."""
    many = [session(f"s{n}", expires_at=START + 60 + n) for n in range(10)]
    for one in many:
        await store.register(Record.of(one))
    await revoke(store, many[0], lease=0)
    clock.now = LATER
    taken = [ended.record.ref for _ in range(4) for ended in await take(store, limit=3)]
    assert [len(taken), set(taken)] == [10, {one.ref for one in many}]
    assert await take(store) == []


async def test_of_parallel_takers_each_session_goes_to_one(store: Store, other: Store, clock: Clock) -> None:
    """On whichever worker they run; what the race left over is there for the next."""
    many = [session(f"s{n}") for n in range(30)]
    for one in many:
        await store.register(Record.of(one))
    clock.now = LATER
    takers = [partial(take, one, limit=2) for one in (store, other) for _ in range(10)]
    taken = [ended.record.ref for some in await at_once(takers) for ended in some]
    rest = [ended.record.ref for ended in await take(store)]
    assert [len(taken + rest), set(taken + rest)] == [30, {one.ref for one in many}]
    assert len(taken) > 0


async def test_a_finished_session_is_never_taken_again(store: Store, clock: Clock) -> None:
    """Its `on_end` has run; its revocation stays."""
    await store.register(Record.of(session()))
    await revoke(store, session(), lease=0)
    await store.purge(session().ref)
    assert await take(store) == []
    assert await store.status(session()) is Standing.ENDED
    clock.now = LATER
    assert await take(store) == []


async def test_finishing_what_is_unknown_is_no_error(store: Store) -> None:
    """And finishing twice is the same as once."""
    await store.purge(session().ref)
    await store.purge(session().ref)


async def test_an_unfinished_session_waits_for_a_taker_for_as_long_as_it_takes(store: Store, clock: Clock) -> None:
    """With its data, long after its token has expired: `on_end` runs at least once, and may read."""
    a = session()
    await store.write(shelf(a), "before", b"0")
    await store.register(Record.of(a))
    await store.write(shelf(a), "browser", b'"b1"')
    for _ in range(5):
        clock.now += 24 * HOUR
        await revoke(store, session(f"x{clock.now}", expires_at=int(clock.now)))
    assert await take(store) == [Ended(Record.of(a), "expired")]
    assert await store.read(shelf(a), "browser") == b'"b1"'
    assert await store.read(shelf(a), "before") == b"0"


async def test_a_worker_leads_for_its_time_and_may_lead_on(store: Store, clock: Clock) -> None:
    """By asking again before it is over."""
    for _ in range(3):
        assert await store.elect("one", audience=AUDIENCE, seconds=30) is True
        clock.now += 29


async def test_one_worker_leads(store: Store, other: Store, clock: Clock) -> None:
    """Another follows it when its time is over, not before."""
    assert await store.elect("one", audience=AUDIENCE, seconds=30) is True
    clock.now = START + 29
    assert await other.elect("two", audience=AUDIENCE, seconds=30) is False
    clock.now = START + 30
    assert await other.elect("two", audience=AUDIENCE, seconds=30) is True
    assert await store.elect("one", audience=AUDIENCE, seconds=30) is False


async def test_of_parallel_workers_one_leads(store: Store, other: Store) -> None:
    """Each asks on its own."""
    asked = [
        partial(one.elect, f"worker {n} of {which}", audience=AUDIENCE, seconds=30)
        for n in range(10)
        for which, one in enumerate((store, other))
    ]
    assert (await at_once(asked)).count(True) == 1


# --- audiences -----------------------------------------------------------------------------------


@pytest.mark.parametrize("subject", [ALICE, None])
async def test_a_cut_off_ends_the_sessions_of_its_audience_alone(store: Store, subject: str | None) -> None:
    """Though the principal is the same one, and whether they are recorded or not."""
    ours, theirs = (msgspec.structs.replace(session(name, issued_at=START - 1), audience=name) for name in "ab")
    for one in (ours, theirs):
        await store.register(Record.of(one))
    await store.revoke_before(START, audience="a", subject=subject, until=LATER)
    assert await store.statuses([ours, theirs]) == [Standing.ENDED, Standing.LIVE]
    assert await store.touch(theirs, idle_timeout=None) is Standing.LIVE
    assert [await store.find(one.ref) for one in (ours, theirs)] == [None, Record.of(theirs)]


async def test_each_audience_lists_and_takes_its_own_sessions(store: Store, clock: Clock) -> None:
    """Whether they were ended, expired or stood idle; one that has none is given none."""
    names = ("a", "b")
    ones = {name: msgspec.structs.replace(session(name), audience=name) for name in names}
    for one in ones.values():
        await store.register(Record.of(one))
    await revoke(store, ones["a"], lease=0)
    listed = [await store.sessions(ALICE, audience=name) for name in (*names, "c")]
    assert listed == [[], [Record.of(ones["b"])], []]
    clock.now = LATER
    for name, reason in zip(("c", "b", "a"), (None, "expired", "deleted"), strict=True):
        taken = await store.claim_ended(audience=name, idle_timeout=HOUR, lease=30, limit=10)
        assert taken == ([] if reason is None else [Ended(Record.of(ones[name]), reason)])
        for ended in taken:
            await store.purge(ended.record.ref)


async def test_one_worker_leads_for_each_audience(store: Store, other: Store) -> None:
    """None has to wait for another's."""
    assert await store.elect("one", audience="a", seconds=30)
    assert await other.elect("two", audience="b", seconds=30)
    assert not await other.elect("two", audience="a", seconds=30)


# --- data ----------------------------------------------------------------------------------------


async def test_what_is_written_is_read(store: Store) -> None:
    """Byte for byte, under its name and session alone; writing None keeps none."""
    a, b = shelf(session("a")), shelf(session("b"))
    key, value = "käse/ \N{SNOWMAN}", '{"\N{SNOWMAN}": [1e400, "\\u0000", null]}'.encode()
    assert await store.read(a, key) is None
    await store.write(a, key, value)
    await store.write(a, "other", b"1")
    assert await store.read(a, key) == value
    assert await store.read(b, key) is None
    await store.write(a, key, b"null")
    assert await store.read(a, key) == b"null"
    await store.write(a, key, None)
    await store.write(a, key, None)
    assert await store.read(a, key) is None
    assert await store.read(a, "other") == b"1"


@pytest.mark.parametrize("key", [STATE_KEY, CAPABILITIES_KEY])
async def test_names_that_no_application_can_give_are_names_too(store: Store, key: str) -> None:
    """The empty one, and those that begin with NUL: what the middleware itself keeps lies there."""
    place = shelf(session())
    await store.write(place, key, b"1")
    await store.write(place, key.strip("\0") or "other", b"2")
    assert await store.read(place, key) == b"1"


async def test_names_are_compared_exactly(store: Store) -> None:
    """By their characters, not by what these look like or mean somewhere."""
    keys = ["a", "A", "a ", "\u00e9", "e\u0301", "*", "%", "a:b", "a\nb", "0", "00"]
    for n, key in enumerate(keys):
        await store.write(shelf(session()), key, b"%d" % n)
    assert [await store.read(shelf(session()), key) for key in keys] == [b"%d" % n for n in range(len(keys))]


async def test_data_is_seen_at_once_by_who_shares_the_store(store: Store, other: Store) -> None:
    """And can be changed there."""
    assert await other.read(shelf(session()), "k") is None
    await store.write(shelf(session()), "k", b"1")
    assert await other.read(shelf(session()), "k") == b"1"
    assert await other.compare_and_swap(shelf(session()), "k", b"1", b"2") is True
    assert await store.read(shelf(session()), "k") == b"2"


async def test_a_value_may_have_an_end_of_its_own(store: Store, clock: Clock) -> None:
    """From that moment on there is none; a new value has the end that it is given, or none."""
    place = shelf(session())
    await store.write(place, "k", b"1", expires_at=START + 10.5)
    clock.now = START + 10.25
    assert await store.read(place, "k") == b"1"
    clock.now = START + 10.5
    assert await store.read(place, "k") is None
    await store.write(place, "k", b"2", expires_at=START + 20)
    await store.write(place, "k", b"3")
    clock.now = START + 30
    assert await store.read(place, "k") == b"3"


async def test_a_value_whose_time_is_over_is_not_kept(store: Store) -> None:
    """It replaces the old one by none."""
    place = shelf(session())
    await store.write(place, "k", b"1")
    await store.write(place, "k", b"2", expires_at=START)
    assert await store.read(place, "k") is None


async def test_a_swap_and_a_sum_leave_the_time_as_it_was(store: Store, clock: Clock) -> None:
    """Where there was none, the new value has none, and an ended value's time is not taken over."""
    place = shelf(session())
    for key in ("swapped", "added", "both"):
        await store.write(place, key, b"1", expires_at=START + 10)
    assert await store.compare_and_swap(place, "swapped", b"1", b"2") is True
    assert await store.add(place, "added", 1) == 2
    clock.now = START + 10
    assert await store.read(place, "swapped") is None
    assert await store.compare_and_swap(place, "swapped", b"2", b"3") is False
    assert await store.compare_and_swap(place, "swapped", None, b"3") is True
    assert await store.add(place, "added", 5) == 5
    clock.now = START + 1000
    assert await store.read(place, "swapped") == b"3"
    assert await store.read(place, "added") == b"5"


async def test_a_swap_needs_the_old_value(store: Store) -> None:
    """None stands for none, on either side; a swap that does not fit changes nothing."""
    place = shelf(session())
    assert await store.compare_and_swap(place, "k", b"0", b"1") is False
    assert await store.read(place, "k") is None
    assert await store.compare_and_swap(place, "k", None, b"1") is True
    assert await store.compare_and_swap(place, "k", None, b"2") is False
    assert await store.compare_and_swap(place, "k", b"1 ", b"2") is False
    assert await store.read(place, "k") == b"1"
    assert await store.compare_and_swap(place, "k", b"1", None) is True
    assert await store.read(place, "k") is None
    assert await store.compare_and_swap(place, "k", None, None) is True


async def test_parallel_swaps_lose_nothing(store: Store) -> None:
    """Who loses the race tries again."""

    async def count() -> None:
        old = await store.read(shelf(session()), "k")
        while not await store.compare_and_swap(shelf(session()), "k", old, b"%d" % (int(old or 0) + 1)):
            old = await store.read(shelf(session()), "k")

    await at_once([count] * 20)
    assert await store.read(shelf(session()), "k") == b"20"


async def test_parallel_sums_lose_nothing(store: Store) -> None:
    """Each caller is told a different one."""
    sums = await at_once([partial(store.add, shelf(session()), "k", 1)] * 20)
    assert sorted(sums) == list(range(1, 21))


@pytest.mark.parametrize(
    ("value", "by", "total"),
    [
        (None, 0, 0),
        (None, -5, -5),
        (b"0", MOST, MOST),
        (b"-1", -MOST, -MOST - 1),
        (b"9007199254740993", 1, 9007199254740994),  # above 2**53, where doubles would lose it
        (b"%d" % -(2**63), MOST, -1),
        (b"%d" % MOST, -(2**63), -1),
        (b"-3", 3, 0),
    ],
)
async def test_sums_are_exact_to_64_bits(store: Store, value: bytes | None, by: int, total: int) -> None:
    """Signed; no value counts as 0, and the sum is kept as JSON."""
    place = shelf(session())
    await store.write(place, "k", value)
    assert await store.add(place, "k", by) == total
    assert await store.read(place, "k") == b"%d" % total


@pytest.mark.parametrize(
    ("value", "by"),
    [
        (b"%d" % MOST, 1),
        (b"%d" % -(2**63), -1),
        (b"%d" % (MOST + 1), -1),
        (b"%d" % (-(2**63) - 1), 1),
        (b"1" * 100, 0),
        (b"1.0", 1),
        (b"1e3", 1),
        (b'"1"', 1),
        (b"null", 1),
        (b"true", 1),
        (b"[1]", 1),
        (b'"a-word"', 1),
    ],
)
async def test_what_is_no_integer_of_64_bits_has_no_sum(store: Store, value: bytes, by: int) -> None:
    """Nor is one made; the value stays."""
    place = shelf(session())
    await store.write(place, "k", value)
    with pytest.raises(DataNotInteger):
        await store.add(place, "k", by)
    assert await store.read(place, "k") == value


async def test_a_sessions_names_and_values_have_a_limit_together(store: Store) -> None:
    """Of bytes in UTF-8. What would exceed it is refused and changes nothing; other sessions have their own."""
    place = shelf(session("a"), max_bytes=10)
    await store.write(place, "ä", b"12345")  # 7 bytes
    await store.write(place, "b", b"12")
    for change in (
        partial(store.write, place, "c", b"1"),
        partial(store.write, place, "b", b"123"),
        partial(store.compare_and_swap, place, "b", b"12", b"123"),
        partial(store.add, place, "b", 88),
        partial(store.add, place, "c", 1),
    ):
        with pytest.raises(DataTooLarge):
            await change()
    assert [await store.read(place, key) for key in "äbc"] == [b"12345", b"12", None]
    await store.write(shelf(session("b"), max_bytes=10), "b", b"123456789")


async def test_what_is_replaced_deleted_or_over_makes_room(store: Store, clock: Clock) -> None:
    """A value whose time is over counts for nothing, read or not."""
    place = shelf(session(), max_bytes=10)
    await store.write(place, "a", b"123456789")
    await store.write(place, "a", b"1234")
    await store.write(place, "b", b"1234", expires_at=START + 10)
    clock.now = START + 10
    await store.write(place, "c", b"1234")
    await store.write(place, "a", None)
    assert await store.compare_and_swap(place, "c", b"1234", b"123456789") is True
    with pytest.raises(DataTooLarge):
        await store.write(place, "d", b"1")


async def test_a_larger_limit_counts_from_then_on(store: Store) -> None:
    """The limit comes with each call."""
    await store.write(shelf(session(), max_bytes=5), "a", b"1234")
    await store.write(shelf(session(), max_bytes=10), "b", b"1234")


async def test_a_revoked_sessions_data_can_be_read_and_not_changed(store: Store) -> None:
    """Until it is finished; whether it was recorded or not."""
    for one in (a := session("a"), session("b")):
        await store.register(Record.of(a))
        await store.write(shelf(one), "k", b"1")
        await revoke(store, one)
        for change in (
            partial(store.write, shelf(one), "k", b"2"),
            partial(store.write, shelf(one), "k", None),
            partial(store.write, shelf(one), "new", b"2"),
            partial(store.compare_and_swap, shelf(one), "k", b"1", b"2"),
            partial(store.compare_and_swap, shelf(one), "k", b"wrong", b"2"),
            partial(store.add, shelf(one), "k", 1),
        ):
            with pytest.raises(DataGone):
                await change()
        assert await store.read(shelf(one), "k") == b"1"
        await store.purge(one.ref)
        assert await store.read(shelf(one), "k") is None
        with pytest.raises(DataGone):
            await store.write(shelf(one), "k", b"2")


async def test_a_copy_is_what_lay_there_at_its_moment(store: Store, clock: Clock) -> None:
    """Every value with its end, but those that are over; neither shelf sees the other's later changes."""
    a, b = session("a"), session("b")
    await store.write(shelf(a), "k", b'"\\u00e9"')
    await store.write(shelf(a), "n", b"7", expires_at=START + 20)
    await store.write(shelf(a), "old", b"1", expires_at=START + 10)
    clock.now += 10
    await store.copy(shelf(a), shelf(b))
    assert [await store.read(shelf(b), key) for key in ("k", "n", "old")] == [b'"\\u00e9"', b"7", None]
    assert await store.add(shelf(b), "n", 1) == 8
    await store.write(shelf(a), "k", b"0")
    await revoke(store, a)
    await store.purge(a.ref)
    assert [await store.read(shelf(b), key) for key in ("k", "n")] == [b'"\\u00e9"', b"8"]
    clock.now += 10
    assert await store.read(shelf(b), "n") is None


async def test_a_copy_of_nothing_is_empty(store: Store) -> None:
    """There need be no data, nor a session that has some."""
    await store.copy(shelf(session("a")), shelf(session("b")))
    assert await store.read(shelf(session("b")), "k") is None


async def test_a_copy_for_a_session_that_has_ended_or_has_no_room_is_refused(store: Store) -> None:
    """As any other change is."""
    a, b, c = session("a"), session("b"), session("c")
    await store.write(shelf(a), "k", b"1234")
    await revoke(store, b)
    with pytest.raises(DataGone):
        await store.copy(shelf(a), shelf(b))
    with pytest.raises(DataTooLarge):
        await store.copy(shelf(a), shelf(c, max_bytes=4))


async def test_a_change_and_a_revocation_have_an_order(store: Store, other: Store) -> None:
    """What was changed before stays, what comes after is refused, and nothing comes after it unseen."""

    async def changes() -> int:
        done = 0
        try:
            while True:
                await other.write(shelf(session()), "k", b"%d" % (done + 1))
                done += 1
        except DataGone:
            return done

    async def ends() -> None:
        for _ in range(3):
            await other.status(session())
        await revoke(store, session())

    done, _ = await at_once([changes, ends])
    assert int(await store.read(shelf(session()), "k") or 0) == done
