"""Workers whose clocks are wrong: they end and delete nothing that lives for others, on any store."""

import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import redis_servers
from every_store import STORES, name

from mcp_sessions._session.claims import Claims
from mcp_sessions._session.data import Namespace
from mcp_sessions.stores import Store
from mcp_sessions.stores._base import SessionStatus
from mcp_sessions.stores._clocks import MachineClock
from mcp_sessions.testing._contract import claim, namespace, register, revoke, session, status_in, statuses_in, touch_in

AHEAD, SOON = 660, 300  # seconds
SHARED = pytest.mark.parametrize("kind", ["sqlite", "redis", "postgres"])
MACHINE = pytest.mark.parametrize("kind", ["memory", "sqlite"])


@pytest.fixture
def anyio_backend() -> str:
    """Redis's driver knows asyncio alone."""
    return "asyncio"


class Running:
    """A clock that runs, and that a test sets to another time."""

    def __init__(self, ahead: float = 0) -> None:
        self.ahead = ahead

    def __call__(self) -> float:
        return time.time() + self.ahead


def live(name: str = "a", *, seconds: int = SOON) -> Claims:
    """Return a session that began just now."""
    now = time.time()
    return session(name, issued_at=now, expires_at=int(now) + seconds)


def kept_for(kind: str, folder: Path, what: str) -> float:
    """Return the seconds for which Redis keeps the entries of a kind; other stores sweep."""
    if kind != "redis":
        return math.inf
    shared = redis_servers.shared()
    return min(int(shared.command("TTL", key)) for key in shared.command("KEYS", f"*{name(folder)}*{what}*"))


@asynccontextmanager
async def two_workers(kind: str, folder: Path, *, ahead: float = AHEAD) -> AsyncIterator[tuple[Store, Store]]:
    """Yield the stores of a worker whose clock is right and of one whose clock is not."""
    right, wrong = (STORES[kind](Running(seconds), folder) for seconds in (0, ahead))
    await right.open()
    try:
        yield right, wrong
    finally:
        await right.close()
        await wrong.close()


@SHARED
@pytest.mark.parametrize("idle_timeout", [None, 60])
async def test_a_clock_that_is_ahead_ends_no_session_of_others(
    kind: str, idle_timeout: int | None, tmp_path: Path
) -> None:
    async with two_workers(kind, tmp_path) as (right, wrong):
        await register(right, one := live())
        assert await claim(wrong, idle_timeout=idle_timeout) == []
        assert await touch_in(right, one, idle_timeout=idle_timeout) is SessionStatus.LIVE
        assert await right.count(audience=one.audience) == 1


@SHARED
async def test_a_clock_that_jumps_ends_no_session_of_others(kind: str, tmp_path: Path) -> None:
    async with two_workers(kind, tmp_path, ahead=0) as (right, wrong):
        clock: Any = wrong._clock  # type: ignore[attr-defined]
        await register(right, one := live())
        assert await claim(wrong) == []
        clock.ahead = 3600
        assert await claim(wrong, idle_timeout=60) == []
        assert await touch_in(right, one, idle_timeout=60) is SessionStatus.LIVE


@SHARED
async def test_a_clock_that_is_ahead_takes_over_no_lease(kind: str, tmp_path: Path) -> None:
    async with two_workers(kind, tmp_path) as (right, wrong):
        await register(right, one := live())
        assert await revoke(right, one, lease=60)
        assert await claim(wrong) == []


@SHARED
async def test_a_lease_lasts_as_long_on_a_clock_that_is_behind(kind: str, tmp_path: Path) -> None:
    """Or another worker would run `on_end` at the same time."""
    async with two_workers(kind, tmp_path, ahead=-AHEAD) as (right, wrong):
        await register(right, one := live())
        assert await revoke(wrong, one, lease=60)
        assert await claim(right) == []


@SHARED
async def test_a_clock_that_is_ahead_forgets_no_ended_session(kind: str, tmp_path: Path) -> None:
    """Neither when its data is purged, nor when what has expired is swept."""
    async with two_workers(kind, tmp_path) as (right, wrong):
        await register(right, one := live("one"))
        assert await revoke(right, one)
        await wrong.purge(one.ref)
        assert await revoke(wrong, two := live("two"), lease=None)
        for _ in range(2):
            await register(wrong, live("three"))  # which also sweeps
            await claim(wrong)
        await wrong.close()  # once it has swept
        assert kept_for(kind, tmp_path, "ended") > SOON
        assert await statuses_in(right, [one, two]) == [SessionStatus.ENDED] * 2


@SHARED
async def test_a_clock_that_is_ahead_forgets_no_cut_off(kind: str, tmp_path: Path) -> None:
    async with two_workers(kind, tmp_path) as (right, wrong):
        one = live()
        times: Any = {"cutoff_time": one.issued_at + 1, "expires_at": one.expires_at}
        await wrong.revoke_before(audience=one.audience, subject=one.subject, **times)
        await register(wrong, live("other"))  # which also sweeps
        await wrong.close()  # once it has swept
        assert kept_for(kind, tmp_path, "cutoff") > SOON
        assert await status_in(right, one) is SessionStatus.ENDED


@SHARED
async def test_a_clock_that_is_ahead_deletes_no_data_of_others(kind: str, tmp_path: Path) -> None:
    async with two_workers(kind, tmp_path) as (right, wrong):
        one = live(seconds=3600)
        place: Namespace = namespace(one)
        await right.write(place, "cart", b"1", expires_at=time.time() + SOON)
        await right.write(place, "plan", b"2")
        await wrong.write(place, "other", b"3")
        await claim(wrong)
        assert [await right.read(place, key) for key in ("cart", "plan", "other")] == [b"1", b"2", b"3"]
        assert await wrong.read(place, "cart") == b"1"
        assert await wrong.compare_and_swap(place, "cart", await wrong.read(place, "cart"), b"4")


@pytest.mark.parametrize("kind", ["redis", "postgres"])
async def test_a_clock_that_jumps_is_reported_with_what_is_at_stake(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """At the next sweep, once."""
    async with two_workers(kind, tmp_path, ahead=0) as (_, wrong):
        clock: Any = wrong._clock  # type: ignore[attr-defined]
        await claim(wrong)
        assert caplog.messages == [] or "clock" not in caplog.text
        clock.ahead = 3600
        for _ in range(3):
            await claim(wrong)
        (told,) = (text for text in caplog.messages if "clock" in text)
        assert "3600 s ahead of" in told
        assert "refuse live ones" in told


@MACHINE
async def test_a_machine_that_jumps_ahead_ends_nothing_until_its_time_has_stayed(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A step that is taken back does no harm; one that stays is believed after a quarter of an hour."""
    true_time, true_steady = time.time, time.monotonic
    wall, passed = [0.0], [0.0]
    monkeypatch.setattr("mcp_sessions.stores._clocks.steady", lambda: true_steady() + passed[0])
    store = STORES[kind](lambda: true_time() + wall[0], tmp_path)
    await register(store, one := live())
    place = namespace(live("long", seconds=9999))
    await store.write(place, "cart", b"1", expires_at=true_time() + SOON)
    monkeypatch.setattr(time, "time", lambda: true_time() + wall[0])
    for wall[0] in (3600, 0, 3600):
        assert await claim(store, idle_timeout=60) == []
        await store.write(place, "other", b"2")
        assert await store.read(place, "cart") == b"1"
    assert sum("jumped 3600 s ahead" in text for text in caplog.messages) == 2
    passed[0] += 901
    wall[0] += 901
    assert [(ended.record.ref, ended.reason) for ended in await claim(store)] == [(one.ref, "expired")]
    await store.close()


def test_a_jump_counts_once_nobody_confirms_the_time_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a quarter of an hour. Who is right says so once a minute; what another run of the machine said is over."""
    passed, wall = [0.0], [0.0]
    true_steady, true_time = time.monotonic, time.time
    monkeypatch.setattr("mcp_sessions.stores._clocks.steady", lambda: true_steady() + passed[0])
    monkeypatch.setattr(time, "time", lambda: true_time() + passed[0] + wall[0])
    right = MachineClock(time.time, "a file")
    known = right.agree(None, None, None)
    assert known is not None
    assert right.agree(*known) is None
    assert right.agree("another run", *known[1:]) is not None
    wall[0] = 3600
    wrong = MachineClock(time.time, "a file")
    assert wrong.agree(*known) is None
    assert wrong() < true_time() + 60
    passed[0] += 600
    confirmed = (known[0], known[1], known[2] + 600)  # by who is right
    assert wrong.agree(*confirmed) is None
    passed[0] += 600
    assert wrong.agree(*confirmed) is None
    assert wrong() < true_time() + 1260
    passed[0] += 400
    believed = wrong.agree(*confirmed)
    assert believed is not None
    assert believed[1] - known[1] == pytest.approx(3600, abs=1)
    wall[0] = 0
    back = MachineClock(time.time, "a file").agree(*believed)
    assert back is not None
    assert back[1] == pytest.approx(known[1], abs=1)
