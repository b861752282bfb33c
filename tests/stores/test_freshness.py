"""`freshness=`: for so long a worker may take a session for live that its store has called live, and no longer."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from apps import Server, sessions
from clients import Client

from mcp_sessions._errors import ConfigurationError
from mcp_sessions._session.claims import AUDIENCE, Claims
from mcp_sessions.stores import MemoryStore, PostgresStore, RedisStore, _timeout, make
from mcp_sessions.stores._base import SessionStatus, Store
from mcp_sessions.stores._timeout import TimeoutStore
from mcp_sessions.testing._contract import LATER, START, Clock, register, revoke, session

LIVE, ENDED, IDLE = SessionStatus.LIVE, SessionStatus.ENDED, SessionStatus.IDLE
FRESHNESS = 2.0  # seconds


class Steady:
    """A monotonic clock that a test moves."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> Steady:
    """The clock by which a status is recent."""
    monkeypatch.setattr(_timeout, "time", steady := Steady())
    return steady


@pytest.fixture
def workers() -> tuple[Store, Store, Clock]:
    """Two workers on one store, and its clock."""
    shared = MemoryStore(clock=(clock := Clock()))
    shared.freshness = FRESHNESS  # type: ignore[attr-defined]
    return TimeoutStore(shared, seconds=60), TimeoutStore(shared, seconds=60), clock


Use = Callable[[Store], Any]
USES: dict[str, Use] = {
    "status": lambda store: store.status(session()),
    "touch": lambda store: store.touch(session(), idle_timeout=60),
}
End = Callable[[Store], Any]
ENDS: dict[str, End] = {
    "revoke": partial(revoke, claims=session()),
    "revoke_before": lambda store: store.revoke_before(START + 1, audience=AUDIENCE, subject=None, expires_at=LATER),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
async def test_an_end_elsewhere_is_seen_when_the_status_is_old(
    workers: tuple[Store, Store, Clock], steady: Steady, use: Use, end: End
) -> None:
    """And one by this worker at once, as in the list of streams, which never relies on it."""
    own, other, _ = workers
    await register(own, session())
    assert [await use(own), await use(other)] == [LIVE, LIVE]
    await end(other)
    assert [await use(own), await use(other)] == [LIVE, ENDED]
    assert await own.statuses([session()]) == [ENDED]
    steady.now += FRESHNESS
    assert await use(own) is ENDED


async def test_an_answer_from_before_an_own_end_is_not_kept() -> None:
    """The question was under way when the session was ended."""

    class Slow(MemoryStore):
        freshness = FRESHNESS

        async def status(self, claims: Claims) -> SessionStatus:
            answer = await super().status(claims)
            await revoke(own, claims)
            return answer

    own = TimeoutStore(Slow(clock=Clock()), seconds=60)
    assert [await own.status(session()) for _ in range(2)] == [LIVE, ENDED]


async def test_a_use_that_was_not_noted_ends_no_session_sooner(
    workers: tuple[Store, Store, Clock], steady: Steady
) -> None:
    """An idle session ends by so much later: for who asks, and for who claims it."""
    own, other, clock = workers
    touch = partial(USES["touch"], own)
    await register(own, session())
    assert await touch() is LIVE
    clock.now += FRESHNESS - 0.1
    assert await touch() is LIVE  # which is not noted
    clock.now, steady.now = START + 62.9, steady.now + 62.9
    claim = partial(other.claim_ended, audience=AUDIENCE, idle_timeout=60, lease=1, limit=9)
    assert await claim() == []
    clock.now = START + 63.0
    assert [ended.reason for ended in await claim()] == ["idle"]


async def test_what_is_remembered_is_bounded(
    workers: tuple[Store, Store, Clock], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All is forgotten when there is too much; the next request asks."""
    monkeypatch.setattr(_timeout, "_MAX_RECENT", 2)
    own, other, _ = workers
    names = [session(name) for name in "abc"]
    assert [await own.status(one) for one in names] == [LIVE] * 3
    for one in names:
        await revoke(other, one)
    assert [await own.status(one) for one in names] == [ENDED, ENDED, LIVE]


@pytest.mark.parametrize("end", ENDS)
async def test_a_session_that_ended_elsewhere_cannot_be_forked(
    workers: tuple[Store, Store, Clock], steady: Steady, end: str
) -> None:
    """The fork would outlive what is relaxed: the end of its parent is not its own."""
    own, other, clock = workers
    app = sessions(Server(), store=own, clock=clock)
    client = Client(app)
    held = await client.create()
    assert (await client.tool(session=held)).session is not None
    clock.now += 1
    claims = app._runtime.tokens.authentic(app._runtime.ring(clock.now), held["sessionId"])
    if end == "revoke":
        await revoke(other, claims)
    else:
        await other.revoke_before(clock.now, audience=AUDIENCE, subject=None, expires_at=claims.expires_at)
    assert (await client.tool(session=held)).session is not None
    assert (await client.send("sessions/fork", session=held)).error["code"] == -32043


@pytest.mark.parametrize("seconds", ["-1", "5.1", "soon", "nan"])
def test_more_than_a_few_seconds_are_refused(seconds: str) -> None:
    """In a URL and as an argument; none is the default."""
    for url in ("redis://host/0?freshness=", "postgresql://host/db?sslmode=disable&freshness="):
        with pytest.raises(ConfigurationError, match=re.escape("freshness= must be a number of seconds from 0 to 5")):
            make(url + seconds, clock=time.time, timeout=1)
        made = make(url + "2.5", clock=time.time, timeout=1)
        assert made._store.freshness == 2.5  # type: ignore[attr-defined]
    assert [RedisStore("redis://host").freshness, PostgresStore("postgresql://host", freshness=1).freshness] == [0, 1]
