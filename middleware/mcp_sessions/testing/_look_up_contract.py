"""The contract of `Store.look_up` as tests: what each request in a session asks."""

from __future__ import annotations

from functools import partial

import pytest

from ..stores._base import STATE_KEY, Found, SessionStatus, Store, resolution
from ._contract import (
    LATER,
    START,
    Clock,
    Fixtures,
    at_once,
    claim,
    listed,
    namespace,
    register,
    revoke,
    session,
    status_in,
    statuses_in,
    touch_in,
)


@pytest.mark.anyio
class LookUpContract(Fixtures):
    """Statuses and states come in one answer."""

    async def test_states_come_with_the_statuses(self, store: Store) -> None:
        """If asked for, of each session, tracked or not. A purged session has no state."""
        a, b, c = (session(name) for name in "abc")
        await register(store, a, c)
        await store.write(namespace(a), STATE_KEY, b'{"of": "a"}')
        await store.write(namespace(a), "other", b"1")
        for one in (b, c):
            await store.write(namespace(one), STATE_KEY, b"{}")
        await revoke(store, c, lease=None)
        live, ended, unrecorded = SessionStatus.LIVE, SessionStatus.ENDED, SessionStatus.UNRECORDED
        assert await store.look_up(b, a, c, a, state=True) == [
            *(Found(live, b"{}"), Found(live, b'{"of": "a"}'), Found(ended, None), Found(live, b'{"of": "a"}'))
        ]
        found = await store.look_up(a, b, session("d"), state=True, touch=True)
        assert found == [Found(live, b'{"of": "a"}'), Found(unrecorded, b"{}"), Found(unrecorded, None)]
        assert await store.look_up(a, b, touch=True) == [Found(live), Found(unrecorded)]
        assert await store.look_up(state=True, touch=True) == []

    async def test_parallel_look_ups_keep_their_own_answers(self, store: Store) -> None:
        """However many are asked about at once, and whatever else each question is about."""
        many = [session(f"{n}") for n in range(60)]
        for n, one in enumerate(many):
            await store.write(namespace(one), STATE_KEY, b"%d" % n)
        questions = [partial(store.look_up, *many[n : n + n % 4], state=True) for n in range(50)]
        answers = await at_once(questions)
        expected = [[Found(SessionStatus.LIVE, b"%d" % k) for k in range(n, n + n % 4)] for n in range(50)]
        assert answers == expected

    async def test_all_sessions_of_a_look_up_are_used(self, store: Store, clock: Clock) -> None:
        """Those that are live: an idle one stays idle. Without `touch` none is."""
        names = [session(name) for name in "abc"]
        await register(store, *names)
        clock.now += 600
        assert await statuses_in(store, names[:2], touch=True, idle_timeout=900) == [SessionStatus.LIVE] * 2
        clock.now += 600
        assert await statuses_in(store, names) == [SessionStatus.LIVE] * 3
        live, idle_now = SessionStatus.LIVE, SessionStatus.IDLE
        assert await statuses_in(store, names, touch=True, idle_timeout=900) == [live, live, idle_now]
        records = {record.ref: record.seen_at for record in await listed(store)}
        assert [records[one.ref] for one in names] == [clock.now, clock.now, START]

    @pytest.mark.parametrize("idle_timeout", [1, 59, 60, 300, 1800])
    async def test_a_session_is_idle_after_its_time_and_the_resolution(
        self, store: Store, clock: Clock, idle_timeout: int
    ) -> None:
        """Each use counts, wherever it falls between two notes; being asked about or refused is not a use."""
        await register(store, session())
        for part in (0.99, 0.01, 0.5, 0.99):
            clock.now += idle_timeout * part
            assert await touch_in(store, session(), idle_timeout=idle_timeout) is SessionStatus.LIVE
        clock.now += idle_timeout * 0.5
        assert await status_in(store, session()) is SessionStatus.LIVE
        clock.now += idle_timeout * 0.5 + resolution(idle_timeout)
        for _ in range(3):
            assert await touch_in(store, session(), idle_timeout=idle_timeout) is SessionStatus.IDLE

    @pytest.mark.parametrize("idle_timeout", [None, 59, 300])
    async def test_a_use_is_on_record_within_the_resolution(
        self, store: Store, clock: Clock, idle_timeout: int | None
    ) -> None:
        """Not every use has to be written. Without an idle timeout a session lives until it expires."""
        await register(store, session())
        for step in (1, 7, 40, 13, 55):
            clock.now += step
            assert await touch_in(store, session(), idle_timeout=idle_timeout) is SessionStatus.LIVE
            found = await store.get(session().ref)
            assert found is not None
            assert clock.now - resolution(idle_timeout) <= found.seen_at <= clock.now
        clock.now = LATER - 1
        assert await touch_in(store, session(), idle_timeout=None) is SessionStatus.LIVE
        assert await claim(store, idle_timeout=None) == []
