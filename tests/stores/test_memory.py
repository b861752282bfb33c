"""The store of one process: bounded everywhere, and it forgets what is over, and nothing else, ever."""

from __future__ import annotations

import pytest

from mcp_sessions._errors import DataTooLarge, StoreFull
from mcp_sessions._session.claims import AUDIENCE
from mcp_sessions._session.data import Namespace
from mcp_sessions.stores._base import VALUE_COST, Ended, Record, SessionStatus
from mcp_sessions.stores._memory import _DROPPED, MemoryStore
from mcp_sessions.testing._contract import ALICE, HOUR, LATER, START, Clock, revoke, session


async def test_expired_revocations_are_dropped_after_the_leeway(clock: Clock) -> None:
    """Never before the token has ended on a clock that is a minute behind."""
    store = MemoryStore(clock=clock)
    a = session("a", expires_at=START + 1)
    await revoke(store, a)
    clock.now = START + 60.9
    await revoke(store, session("b", expires_at=START + HOUR + 100))
    assert await store.status(a) is SessionStatus.ENDED
    clock.now = START + 61
    await revoke(store, session("c", expires_at=START + HOUR + 100))
    assert await store.status(a) is SessionStatus.LIVE
    assert len(store._revoked) == 2


async def test_a_full_store_refuses_and_forgets_nothing(clock: Clock) -> None:
    """A delete that cannot be kept fails loudly; one that is already kept, and one after room was made, succeed."""
    store = MemoryStore(max_entries=2, clock=clock)
    a, b, c = session("a", expires_at=START + 1), session("b", expires_at=START + 9 * HOUR), session("c")
    await revoke(store, a)
    await revoke(store, b)
    with pytest.raises(StoreFull):
        await revoke(store, c)
    assert await revoke(store, a) is False
    assert await store.status(c) is SessionStatus.LIVE
    clock.now = START + 2 * HOUR
    await revoke(store, c)
    assert len(store._revoked) == 2


async def test_no_more_sessions_are_recorded_than_may_be(clock: Clock) -> None:
    """One more is refused; a finished one makes room."""
    store = MemoryStore(max_sessions=2, clock=clock)
    a, b, c = session("a"), session("b", subject=None), session("c")
    await store.register(Record.of(a))
    await store.register(Record.of(b))
    await store.register(Record.of(a))
    with pytest.raises(StoreFull):
        await store.register(Record.of(c))
    await store.purge(b.ref)
    await store.register(Record.of(c))
    await store.purge(a.ref)
    assert await store.list_sessions(subject=ALICE, audience=AUDIENCE, limit=1000) == [Record.of(c)]
    await store.purge(c.ref)
    assert await store.list_sessions(subject=ALICE, audience=AUDIENCE, limit=1000) == []


async def test_a_full_store_ends_no_idle_session(clock: Clock) -> None:
    """Its end could not be kept, so it is given to nobody; with room, it is."""
    store = MemoryStore(max_entries=1, clock=clock)
    await store.register(Record.of(session("a")))
    await revoke(store, session("b", expires_at=START + 2))
    clock.now = START + 61
    with pytest.raises(StoreFull):
        await store.claim_ended(audience=AUDIENCE, idle_timeout=60, lease=30, limit=10)
    clock.now = START + 2 * HOUR
    assert await store.claim_ended(audience=AUDIENCE, idle_timeout=60, lease=30, limit=10) == [
        Ended(Record.of(session("a")), "expired")
    ]


async def test_a_clock_that_goes_back_takes_no_use_back(clock: Clock) -> None:
    """The latest use counts."""
    store = MemoryStore(clock=clock)
    await store.register(Record.of(session()))
    clock.now = START + 50
    assert await store.touch(session(), idle_timeout=59) is SessionStatus.LIVE
    clock.now = START + 10
    assert await store.touch(session(), idle_timeout=59) is SessionStatus.LIVE
    clock.now = START + 100
    assert await store.touch(session(), idle_timeout=59) is SessionStatus.LIVE


async def test_what_is_dropped_makes_room_for_data(clock: Clock) -> None:
    """Deleted, over, or of a session that was purged: all of it is counted back, however often."""
    store = MemoryStore(max_data_bytes=VALUE_COST + 10, clock=clock)
    one, other = (Namespace(session(name).ref, LATER, 1000) for name in "ab")
    for _ in range(3):
        await store.write(one, "k", b"123456789", expires_at=clock.now + 10)
        with pytest.raises(StoreFull):
            await store.write(other, "k", b"1")
        await store.write(one, "k", None)
        await store.write(other, "k", b"123456789")
        await store.purge(other.owner)
        await store.write(one, "k", b"123456789", expires_at=clock.now + 10)
        clock.now += 10
        await store.write(one, "longer", b"1234")
        assert await store.read(one, "k") is None
        await store.write(one, "longer", None)


async def test_a_refused_value_takes_no_room(clock: Clock) -> None:
    """Neither where it is too large for its session, nor where it is for the store."""
    store = MemoryStore(max_data_bytes=2 * (VALUE_COST + 10), clock=clock)
    one, other = (Namespace(session(name).ref, LATER, 20) for name in "ab")
    with pytest.raises(DataTooLarge):
        await store.write(one, "k", b"1" * 20)
    await store.write(one, "k", b"123456789")
    await store.write(other, "k", b"123456789")
    for change in (store.write(one, "l", b"1"), store.write(one, "k", b"1" * 10), store.add(one, "l", 1)):
        with pytest.raises(StoreFull):
            await change
    assert await store.read(one, "k") == b"123456789"


async def test_the_data_of_a_recorded_session_waits_for_its_on_end(clock: Clock) -> None:
    """Minute after minute, while the data of others that are over goes."""
    store = MemoryStore(clock=clock)
    kept, gone = (Namespace(session(name).ref, LATER, 1000) for name in "ab")
    await store.register(Record.of(session("a")))
    for namespace in (kept, gone):
        await store.write(namespace, "k", b"1")
    for n in range(3):
        clock.now = LATER + 60 + 60 * n
        await revoke(store, session(f"c{n}", expires_at=LATER + 9 * HOUR))
        assert [await store.read(namespace, "k") for namespace in (kept, gone)] == [b"1", None]
    await store.purge(kept.owner)
    assert await store.read(kept, "k") is None


async def test_a_cut_off_takes_the_room_of_one_however_often_it_moves(clock: Clock) -> None:
    """Those of others stay when it goes, also those of the same minute."""
    store = MemoryStore(max_entries=2, clock=clock)
    before = session(expires_at=LATER + HOUR)
    for until in (START + 10, START + 20, START + 20):
        await store.revoke_before(START + 1, audience=AUDIENCE, subject=ALICE, expires_at=until)
    await store.revoke_before(START + 1, audience=AUDIENCE, subject="bob", expires_at=START + 61)
    with pytest.raises(StoreFull):
        await store.revoke_before(START + 1, audience=AUDIENCE, subject=None, expires_at=LATER)
    clock.now = START + 120
    await store.revoke_before(START, audience=AUDIENCE, subject=None, expires_at=LATER)
    assert len(store._revoked) == 2
    assert await store.status(before) is SessionStatus.LIVE


async def test_a_claim_that_is_over_at_once_is_given_once_in_a_call(clock: Clock) -> None:
    """And again by the next."""
    store = MemoryStore(clock=clock)
    await store.register(Record.of(session()))
    clock.now = LATER
    for _ in range(2):
        taken = await store.claim_ended(audience=AUDIENCE, idle_timeout=None, lease=0, limit=10)
        assert taken == [Ended(Record.of(session()), "expired")]


async def test_names_that_come_and_go_leave_nothing_behind(clock: Clock) -> None:
    """What was removed before its moment does not pile up until then."""
    store = MemoryStore(clock=clock)
    for n in range(3000):
        await store.register(Record.of(session(f"{n}")))
        await store.purge(session(f"{n}").ref)
    await store.register(Record.of(session()))
    (deadlines,) = store._deadlines.values()
    assert len(deadlines._heap) < 2000
    clock.now = LATER
    assert len(await store.claim_ended(audience=AUDIENCE, idle_timeout=None, lease=30, limit=10)) == 1


async def test_the_data_of_many_sessions_that_are_over_is_dropped_some_at_a_time(clock: Clock) -> None:
    """Each change drops some, until all are gone."""
    store = MemoryStore(clock=clock)
    for n in range(_DROPPED + 1):
        await store.write(Namespace(session(f"{n}").ref, LATER, 1000), "k", b"1")
    clock.now = LATER + 60
    for left in (1, 0):
        await store.revoke_before(START, audience=AUDIENCE, subject=ALICE, expires_at=LATER + HOUR)
        assert len(store._data._values) == left
