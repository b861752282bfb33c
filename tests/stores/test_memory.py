"""The store of one process: bounded everywhere, and it forgets what is over, and nothing else, ever."""

import pytest
from apps import Server, sessions, sweeper_of
from clients import Client, Clock

from mcp_sessions._errors import DataTooLarge, StoreFull
from mcp_sessions._session.claims import AUDIENCE
from mcp_sessions._session.data import Namespace
from mcp_sessions.stores._base import ANONYMOUS, VALUE_COST, Ended, Record, SessionStatus
from mcp_sessions.stores._memory import SLICE, MemoryStore
from mcp_sessions.testing._contract import (
    ALICE,
    BOB,
    DAY,
    HOUR,
    LATER,
    START,
    claim,
    listed,
    register,
    revoke,
    session,
    status_in,
    touch_in,
)
from mcp_sessions.testing._store_contract import shelf


async def test_full_store_refuses_and_forgets_nothing(clock: Clock) -> None:
    """A delete that cannot be kept fails loudly; one that is already kept, and one after room was made, succeed."""
    store = MemoryStore(max_entries=2, clock=clock)
    a, b, c = session("a", expires_at=START + 1), session("b", expires_at=START + 9 * HOUR), session("c")
    await revoke(store, a)
    await revoke(store, b)
    with pytest.raises(StoreFull):
        await revoke(store, c)
    assert await revoke(store, a) is False
    assert await status_in(store, c) is SessionStatus.LIVE
    clock.now = START + 2 * HOUR
    await revoke(store, c)
    assert len(store._audiences[AUDIENCE].ended) == 2


async def test_number_of_recorded_sessions_is_limited(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """One more is refused, which is logged with the limit, once; a finished one makes room."""
    store = MemoryStore(max_sessions=3, clock=clock)
    a, b, c, d = session("a"), session("b", subject=BOB), session("c"), session("d")
    await register(store, a, b, a, c)
    await store.write(shelf("a"), "k", b"x" * 300)
    for _ in range(2):
        with pytest.raises(StoreFull):
            await register(store, d)
    (text,) = caplog.messages
    assert "MemoryStore with max_sessions=3" in text
    await store.purge(b.ref, c.ref)
    await register(store, d)
    await store.purge(a.ref)
    assert await listed(store) == [Record.of(d)]


async def test_anonymous_sessions_leave_room_for_others(clock: Clock) -> None:
    """A tenth of the records, and a quarter of the data."""
    store = MemoryStore(max_sessions=20, max_data_bytes=1000, clock=clock)
    first, *others, last = (Record.of(session(f"{n}", subject=None)) for n in range(19))
    for record in (first, *others):
        await store.register(record)
    with pytest.raises(StoreFull):
        await store.register(last)
    await register(store, session("b", subject=BOB))
    await store.purge(first.ref)
    await store.register(last)
    one, two = (Namespace(ref, LATER, 10_000, ANONYMOUS, None) for ref in ("ses_1", "ses_2"))
    await store.write(one, "k", b"x" * 500)
    with pytest.raises(StoreFull):
        await store.write(two, "k", b"x")
    await store.write(shelf("b", BOB), "k", b"x")


async def test_full_store_ends_no_idle_session(clock: Clock) -> None:
    """Its end could not be kept, so it is given to nobody; with room, it is."""
    store = MemoryStore(max_entries=1, clock=clock)
    await register(store, session("a"))
    await revoke(store, session("b", expires_at=START + 2))
    clock.now = START + 61
    with pytest.raises(StoreFull):
        await claim(store, idle_timeout=60)
    clock.now = START + 2 * HOUR
    assert await claim(store, idle_timeout=60) == [Ended(Record.of(session("a")), "expired")]


async def test_clock_that_goes_back_undoes_no_use(clock: Clock) -> None:
    """The latest use counts."""
    store = MemoryStore(clock=clock)
    await register(store, session())
    for seconds in (50, 10, 100):
        clock.now = START + seconds
        assert await touch_in(store, session(), idle_timeout=59) is SessionStatus.LIVE


async def test_removed_data_makes_room(clock: Clock) -> None:
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


async def test_refused_value_takes_no_room(clock: Clock) -> None:
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


async def test_moved_cut_off_takes_room_once(clock: Clock) -> None:
    """Those of others stay when it goes, also those of the same minute."""
    store = MemoryStore(max_entries=2, clock=clock)
    for until in (START + 10, START + 20, START + 20):
        await store.revoke_before(START + 1, audience=AUDIENCE, subject=ALICE, expires_at=until)
    await store.revoke_before(START + 1, audience=AUDIENCE, subject=BOB, expires_at=START + 61)
    with pytest.raises(StoreFull):
        await store.revoke_before(START + 1, audience=AUDIENCE, subject=None, expires_at=LATER)
    clock.now = START + 120
    await store.revoke_before(START, audience=AUDIENCE, subject=None, expires_at=LATER)
    assert len(store._audiences[AUDIENCE].ended) == 2
    assert await status_in(store, session()) is SessionStatus.LIVE


async def test_session_is_claimed_once_in_a_call(clock: Clock) -> None:
    """And again by the next."""
    store = MemoryStore(clock=clock)
    await register(store, session())
    clock.now = LATER
    for _ in range(2):
        assert await claim(store, lease=0) == [Ended(Record.of(session()), "expired")]


async def test_purged_sessions_leave_nothing_behind(clock: Clock) -> None:
    """What was removed before its moment does not pile up until then."""
    store = MemoryStore(clock=clock)
    for n in range(3000):
        await register(store, session(f"{n}"))
        await store.purge(session(f"{n}").ref)
    await register(store, session())
    assert sum(map(len, store._audiences[AUDIENCE].due._buckets.values())) == 1
    clock.now = LATER
    assert len(await claim(store)) == 1


async def test_expired_data_is_removed_in_slices(clock: Clock) -> None:
    """Each change drops some, until all are gone."""
    store = MemoryStore(clock=clock)
    for n in range(SLICE + 1):
        await store.write(Namespace(session(f"{n}").ref, LATER, 1000), "k", b"1")
    clock.now = LATER + 60
    for left in (1, 0):
        await store.revoke_before(START, audience=AUDIENCE, subject=ALICE, expires_at=LATER + HOUR)
        assert len(store._audiences[AUDIENCE].data._owners) == left


@pytest.mark.parametrize("tracked", [False, True])
async def test_abandoned_sessions_leave_nothing_behind(clock: Clock, tracked: bool) -> None:
    """What a session is stands in its token, so nothing is kept by default; a tracked one goes after a silent day."""
    store = MemoryStore(clock=clock)
    app = sessions(Server(), clock=clock, store=store, tracked=tracked)
    for _ in range(3):
        client = Client(app)
        await client.tool(session=await client.create())
    for later, left in ((DAY - 1, 3 * tracked), (2 * 60, 0)):
        clock.now += later
        assert not (tracked and await sweeper_of(app).sweep())
        assert len(store._audiences[AUDIENCE].records) == await store.count(audience=AUDIENCE) == left
    assert await store.list_sessions(audience=AUDIENCE, limit=3) == []
    assert tracked or (len(store._audiences[AUDIENCE].ended), store._audiences[AUDIENCE].data.bytes) == (0, 0)
