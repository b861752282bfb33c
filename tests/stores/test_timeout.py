"""Calls of a store end in time, whatever goes wrong inside is one kind of error, and `freshness=` saves questions."""

import logging
import re
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any, cast

import anyio
import pytest
from failing import Failing
from reasons import refused

from mcp_sessions._errors import ConfigurationError, DataGone, StoreFull, StoreUnavailable
from mcp_sessions._session.claims import AUDIENCE
from mcp_sessions.stores import PostgresStore, RedisStore, _timeout, make
from mcp_sessions.stores._base import METHODS, Record, SessionStatus, Store, StoreScope
from mcp_sessions.stores._timeout import _STEPS as STEPS
from mcp_sessions.stores._timeout import TimeoutStore, time_limit
from mcp_sessions.testing._contract import (
    namespace,
    session,
    status_in,
)

LIVE, ENDED = SessionStatus.LIVE, SessionStatus.ENDED
CLAIMS = session()
RECORD = Record.of(CLAIMS)
NAMESPACE = namespace(CLAIMS)
PASSWORD = "redis://user:a-password-of-the-store@host"
FRESHNESS = 2.0  # seconds
CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any], int]] = {
    "open": ((), {}, 20),
    "close": ((), {}, 20),
    "register_at_epoch": ((CLAIMS,), {}, 3),
    "look_up": ((CLAIMS, CLAIMS), {"state": True}, 1),
    "revoke": ((RECORD,), {"reason": "ended", "lease": 2}, 3),
    "revoke_before": ((1,), {"audience": AUDIENCE, "subject": "s", "expires_at": 2}, 20),
    "register": ((RECORD,), {"max_sessions": 1}, 3),
    "list_sessions": ((), {"audience": AUDIENCE, "subject": "s", "after": (1, "r"), "limit": 2}, 3),
    "count": ((), {"audience": AUDIENCE}, 20),
    "get": (("r",), {}, 20),
    "claim_ended": ((), {"audience": AUDIENCE, "idle_timeout": 1, "lease": 2, "limit": 3}, 20),
    "purge": (("r",), {}, 3),
    "read": ((NAMESPACE, "k"), {}, 1),
    "write": ((NAMESPACE, "k", b"1"), {"expires_at": 2.0}, 1),
    "compare_and_swap": ((NAMESPACE, "k", b"1", b"2"), {}, 1),
    "add": ((NAMESPACE, "k", 1), {}, 1),
    "copy": ((NAMESPACE, NAMESPACE), {}, 3),
}
"""What each call is given, and its seconds where one answer may take one, and what no request waits for 20."""


class Scripted:
    """A store that only notes what is asked of it, and then does what it was made for."""

    scope = StoreScope.NETWORK

    def __init__(self, does: Callable[[], Awaitable[object]]) -> None:
        self.does = does
        self.asked: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Callable[..., Awaitable[object]]:
        if name not in CALLS:
            raise AttributeError(name)

        async def method(*args: Any, **kwargs: Any) -> object:
            self.asked.append((name, args, kwargs))
            return await self.does()

        return method


class OnDisk(Scripted):
    writes_to_disk = True


def within(does: Callable[[], Awaitable[object]], seconds: float = 60, background: float = 5) -> TimeoutStore:
    return TimeoutStore(cast("Store", Scripted(does)), seconds=seconds, background_timeout=background)


def raising(error: Exception) -> TimeoutStore:
    async def fail() -> object:
        raise error

    return within(fail)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that each call was given."""
    counted: list[float] = []

    def counting(seconds: float) -> AbstractContextManager[None]:
        counted.append(seconds)
        return time_limit(seconds)

    monkeypatch.setattr(_timeout, "time_limit", counting)
    return counted


# --- time ----------------------------------------------------------------------------------------


def test_no_part_of_the_contract_is_forgotten() -> None:
    contract = {name for name in dir(Store) if not name.startswith("_")}
    store, own = within(anyio.sleep_forever), {"recent", "location", "fault", "last_fault", "on_call"}
    assert {name for name in dir(store) if not name.startswith("_")} == contract | own
    assert {*CALLS, "scope"} == {*METHODS, "scope"} == contract


@pytest.mark.parametrize("name", CALLS)
async def test_every_call_is_passed_on_as_it_is_with_its_time(name: str, counted: list[float]) -> None:
    """What takes several answers may take as long as those together; nothing may take less than one answer."""
    result, (args, options, seconds) = object(), CALLS[name]

    async def answer() -> object:
        return result

    for store in (within(answer, 1, 20), within(answer, 30, 20)):
        assert await getattr(store, name)(*args, **options) in {None, result}
        assert cast("Scripted", store._store).asked == [(name, args, options)]
    assert counted == [seconds, 90 if seconds == 3 else 30]


@pytest.mark.parametrize("name", CALLS)
async def test_changes_on_a_disk_have_a_time_of_their_own(name: str, counted: list[float]) -> None:
    """Other processes may keep the disk busy, which is no outage; reading from it takes no longer."""
    args, options, seconds = CALLS[name]
    store = TimeoutStore(cast("Store", OnDisk(anyio.lowlevel.checkpoint)), seconds=1, write_seconds=7)
    await getattr(store, name)(*args, **options)
    changes = "register register_at_epoch revoke purge write compare_and_swap add copy".split()
    assert counted == [7 if name in changes else {20: 5}.get(seconds, seconds)]
    await store.look_up(CLAIMS, touch=True)
    assert counted[1] == 7


async def test_only_the_first_opening_may_take_its_time(counted: list[float]) -> None:
    """It is the server's start; later ones are a request's, which is refused in time."""
    store = within(anyio.lowlevel.checkpoint, 1, 20)
    for _ in range(3):
        await store.open()
    assert counted == [20, 3, 3]


async def test_a_call_that_takes_too_long_has_an_unknown_outcome() -> None:
    """The session is neither found nor not found."""
    with refused("store_timeout"):
        await status_in(within(anyio.sleep_forever, 0, 0), CLAIMS)


async def test_who_cancels_from_outside_is_not_told_of_a_time_out() -> None:
    """A client that hangs up, or a time limit around the request, is neither a failure of the store nor swallowed."""
    with anyio.CancelScope() as outer:
        outer.cancel()
        await within(anyio.sleep_forever).get("r")
    assert outer.cancelled_caught
    with pytest.raises(TimeoutError), anyio.fail_after(0):
        await within(anyio.sleep_forever).get("r")


async def test_time_in_which_the_event_loop_did_not_run_counts_once() -> None:
    """What was answered meanwhile has as many rounds of the loop as it needs to arrive."""
    with time_limit(0.01):
        time.sleep(0.03)  # noqa: ASYNC251  # as other processes do to it on a busy machine
        for _ in range(STEPS - 2):
            await anyio.lowlevel.checkpoint()


async def test_waiting_for_a_connection_takes_no_time() -> None:
    """However many calls come at once: each has its time from when it has a connection."""
    running, most = 0, 0

    async def answer() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await anyio.sleep(0.05)
        running -= 1

    store = within(answer, 0.5)
    store._connections = 2
    async with anyio.create_task_group() as group:
        for _ in range(40):
            group.start_soon(store.read, NAMESPACE, "k")
    assert (most, store.fault, len(cast("Scripted", store._store).asked)) == (2, None, 40)


async def test_calls_that_wait_for_a_dead_store_fail_with_it() -> None:
    """If no connection leads anywhere, the others need not try one after the other; a later call tries again."""
    store, faults = within(anyio.sleep_forever, 0.01), list[str]()
    asked = cast("Scripted", store._store).asked
    store._connections = 3

    async def read() -> None:
        with pytest.raises(StoreUnavailable) as caught:
            await store.read(NAMESPACE, "k")
        faults.append(caught.value.reason)

    async with anyio.create_task_group() as group:
        for _ in range(30):
            group.start_soon(read)
    assert faults == ["store_timeout"] * 30
    assert len(asked) < 6  # a connection is free again before the last one has failed
    asked.clear()
    await read()
    assert len(asked) == 1


# --- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "reason", "cause"),
    [
        (ConnectionResetError(PASSWORD), "store_error", "it raised ConnectionResetError"),
        (OSError(28, PASSWORD), "store_error", "it raised OSError (No space left on device)"),
        (TimeoutError(PASSWORD), "store_timeout", "no answer within 60 s"),  # the driver gave up first
        (ConfigurationError("do this"), "store_misconfigured", "do this"),
    ],
)
async def test_a_foreign_error_is_named_and_its_text_kept_back(
    error: Exception, reason: str, cause: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Drivers quote addresses, and addresses hold passwords: one line with the kind of error, and no more."""
    store = raising(error)
    with caplog.at_level(logging.DEBUG, "mcp_sessions"), pytest.raises(StoreUnavailable) as caught:
        await status_in(store, CLAIMS)
    assert (caught.value.reason, caught.value.__suppress_context__) == (reason, True)
    assert caplog.messages == [f"session store unavailable ({reason}): Scripted: {cause}"]
    assert caplog.records[0].exc_info is None


async def test_a_store_whose_methods_are_not_async_fails_like_any_other() -> None:
    """A mistake in a foreign store never counts as "not revoked"."""
    with refused("store_error"):
        await within(cast("Any", object)).get("r")


@pytest.mark.parametrize("error", [StoreFull(), StoreUnavailable("store_locked"), DataGone("it has ended")])
async def test_errors_of_the_package_pass(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """A fault of the store is logged here, the rest where it is answered."""
    with pytest.raises(type(error)) as caught:
        await raising(error).purge("r")
    assert caught.value is error
    assert len(caplog.records) == isinstance(error, StoreUnavailable)


async def test_who_opens_a_store_that_is_set_up_wrongly_learns_the_remedy() -> None:
    with pytest.raises(ConfigurationError, match="do this"):
        await TimeoutStore(Failing("open", error=lambda: ConfigurationError("do this")), seconds=60).open()


def test_the_other_store_s_reach_is_told_and_its_repr_is_not() -> None:
    """A `repr` may hold an address."""
    store = within(anyio.sleep_forever)
    assert (store.scope, repr(store)) == (StoreScope.NETWORK, "<TimeoutStore of Scripted>")


@pytest.mark.parametrize("seconds", ["-1", "5.1", "soon", "nan"])
def test_more_than_a_few_seconds_are_refused(seconds: str) -> None:
    """In a URL and as an argument; none is the default."""
    for url in ("redis://host/0?freshness=", "postgresql://host/db?sslmode=disable&freshness="):
        with pytest.raises(ConfigurationError, match=re.escape("freshness= must be a number of seconds from 0 to 5")):
            make(url + seconds, clock=time.time, timeout=1)
        made = make(url + "2.5", clock=time.time, timeout=1)
        assert made._store.freshness == 2.5  # type: ignore[attr-defined]
    assert [RedisStore("redis://host").freshness, PostgresStore("postgresql://host", freshness=1).freshness] == [0, 1]
