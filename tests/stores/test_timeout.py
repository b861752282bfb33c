"""Calls of a store end in time, and whatever goes wrong inside is one kind of error."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any, NoReturn, cast

import anyio
import pytest

from mcp_sessions._errors import ConfigurationError, DataGone, StoreFull, StoreUnavailable
from mcp_sessions._session.claims import AUDIENCE
from mcp_sessions.stores import _timeout
from mcp_sessions.stores._base import METHODS, Record, Store, StoreScope, StoreUsage
from mcp_sessions.stores._memory import MemoryStore
from mcp_sessions.stores._timeout import _STEPS as STEPS
from mcp_sessions.stores._timeout import TimeoutStore, _time_limit
from mcp_sessions.testing._contract import namespace, session

CLAIMS = session()
RECORD = Record.of(CLAIMS)
NAMESPACE = namespace(CLAIMS)
PASSWORD = "redis://user:a-password-of-the-store@host"

Call = Callable[[Store], Awaitable[object]]

CALLS: dict[str, Call] = {
    "open": lambda store: store.open(),
    "close": lambda store: store.close(),
    "register_at_epoch": lambda store: store.register_at_epoch(CLAIMS),
    "status": lambda store: store.status(CLAIMS),
    "statuses": lambda store: store.statuses([CLAIMS]),
    "revoke": lambda store: store.revoke(RECORD, reason="ended", lease=2),
    "revoke_before": lambda store: store.revoke_before(1, audience=AUDIENCE, subject="s", expires_at=2),
    "register": lambda store: store.register(RECORD, max_sessions=1),
    "touch": lambda store: store.touch(CLAIMS, idle_timeout=1),
    "list_sessions": lambda store: store.list_sessions(
        audience=AUDIENCE, subject="s", after=(1, "r"), limit=2, with_cut_off=True
    ),
    "count": lambda store: store.count(audience=AUDIENCE),
    "get": lambda store: store.get("r"),
    "claim_ended": lambda store: store.claim_ended(audience=AUDIENCE, idle_timeout=1, lease=2, limit=3),
    "purge": lambda store: store.purge("r"),
    "read": lambda store: store.read(NAMESPACE, "k"),
    "write": lambda store: store.write(NAMESPACE, "k", b"1", expires_at=2.0),
    "compare_and_swap": lambda store: store.compare_and_swap(NAMESPACE, "k", b"1", b"2"),
    "add": lambda store: store.add(NAMESPACE, "k", 1),
    "copy": lambda store: store.copy(NAMESPACE, NAMESPACE),
}
EVERY = pytest.mark.parametrize("name", CALLS)


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


def scripted(does: Callable[[], Awaitable[object]]) -> Store:
    return cast("Store", Scripted(does))


def raising(error: Exception) -> Store:
    async def fail() -> object:
        raise error

    return scripted(fail)


def test_no_part_of_the_contract_is_forgotten() -> None:
    """Every method of a store stands here, and nothing else."""
    contract = {name for name in dir(Store) if not name.startswith("_")}
    assert {name for name in dir(TimeoutStore) if not name.startswith("_")} == contract
    assert {*CALLS, "scope"} == {*METHODS, "scope"} == contract


@EVERY
async def test_every_call_is_passed_on_as_it_is(name: str) -> None:
    """The same arguments, and the same result back."""
    result = object()

    async def answer() -> object:
        return result

    bare, within = Scripted(answer), Scripted(answer)
    assert await CALLS[name](cast("Store", bare)) is result
    returned = await CALLS[name](TimeoutStore(cast("Store", within), seconds=60))
    assert within.asked == bare.asked
    assert [asked[0] for asked in within.asked] == [name]
    assert returned in (None, result)


@EVERY
async def test_every_call_ends_in_time(name: str) -> None:
    """Nobody knows then what became of it: the session is neither found nor not found."""
    with pytest.raises(StoreUnavailable) as caught:
        await CALLS[name](TimeoutStore(scripted(anyio.sleep_forever), seconds=0, background_timeout=0))
    assert caught.value.reason == "store_timeout"


LONGER = {
    **dict.fromkeys(("register_at_epoch", "register", "revoke", "purge", "list_sessions", "copy"), 3),
    **dict.fromkeys(("open", "close", "claim_ended", "revoke_before", "get", "count"), 20),
}


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that each call was given."""
    counted: list[float] = []

    def counting(seconds: float) -> AbstractContextManager[None]:
        counted.append(seconds)
        return _time_limit(seconds)

    monkeypatch.setattr(_timeout, "_time_limit", counting)
    return counted


@EVERY
async def test_what_no_request_waits_for_may_take_longer(name: str, counted: list[float]) -> None:
    """And what takes several answers as long as those together; but nothing less than one answer."""
    await CALLS[name](TimeoutStore(scripted(anyio.lowlevel.checkpoint), seconds=1, background_timeout=20))
    await CALLS[name](TimeoutStore(scripted(anyio.lowlevel.checkpoint), seconds=30, background_timeout=20))
    longer = LONGER.get(name, 1)
    assert counted == [longer, 90 if longer == 3 else 30]


async def test_only_the_first_opening_may_take_its_time(counted: list[float]) -> None:
    """It is the server's start; later ones are a request's, which is refused in time."""
    store = TimeoutStore(scripted(anyio.lowlevel.checkpoint), seconds=1, background_timeout=20)
    for _ in range(3):
        await store.open()
    assert counted == [20, 3, 3]


async def test_a_full_store_says_so_though_it_cannot_say_how(caplog: pytest.LogCaptureFixture) -> None:
    """What fills it is asked for once a minute; a diagnosis that hangs or fails hides nothing."""

    class Full(Scripted):
        async def usage(self) -> object:
            self.asked.append(("usage", (), {}))
            return await answers.pop()()

    async def answer() -> object:
        return StoreUsage(1, 2, 3, 4)

    async def full() -> object:
        raise StoreFull

    for kind, lines in ((anyio.sleep_forever, 0), (full, 0), (answer, 1)):
        answers = [kind]
        store = TimeoutStore(cast("Store", Full(full)), seconds=0.01)
        for _ in range(2):
            with pytest.raises(StoreFull):
                await store.register(RECORD)
        assert [answers, sum("at most 2 of one principal" in text for text in caplog.messages)] == [[], lines]


async def test_a_driver_s_own_time_out_counts_as_one() -> None:
    """Whoever gave up first."""
    with pytest.raises(StoreUnavailable) as caught:
        await TimeoutStore(raising(TimeoutError(PASSWORD)), seconds=60).get("r")
    assert caught.value.reason == "store_timeout"


@EVERY
async def test_a_foreign_error_is_named_and_its_text_kept_back(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Drivers quote addresses, and addresses hold passwords: one line with the kind of error, and no more."""
    with caplog.at_level(logging.DEBUG, "mcp_sessions"), pytest.raises(StoreUnavailable) as caught:
        await CALLS[name](TimeoutStore(raising(ConnectionResetError(PASSWORD)), seconds=60))
    assert caught.value.reason == "store_error"
    assert caught.value.__suppress_context__
    assert [record.getMessage() for record in caplog.records] == [
        "session store unavailable (store_error): Scripted: builtins.ConnectionResetError"
    ]
    assert caplog.records[0].exc_info is None


@pytest.mark.parametrize("error", [StoreFull(), DataGone("the session has ended")])
async def test_errors_of_the_package_pass(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """They say what they have to say; a fault of the store is logged here, the rest where it is answered."""
    with pytest.raises(type(error)) as caught:
        await TimeoutStore(raising(error), seconds=60).purge("r")
    assert caught.value is error
    assert len(caplog.records) == isinstance(error, StoreUnavailable)


async def test_a_store_that_is_set_up_wrongly_is_unavailable_to_requests(caplog: pytest.LogCaptureFixture) -> None:
    """The log has the remedy, as has the error where the store is opened."""

    class Wrong(MemoryStore):
        async def open(self) -> NoReturn:
            raise ConfigurationError("do this")

        async def get(self, ref: str) -> NoReturn:
            await self.open()

    store = TimeoutStore(Wrong(), seconds=60)
    with pytest.raises(ConfigurationError, match="do this"):
        await store.open()
    with pytest.raises(StoreUnavailable) as caught:
        await store.get("r")
    assert caught.value.reason == "store_misconfigured"
    assert caplog.messages == ["session store unavailable (store_misconfigured): memory: do this"]


async def test_a_store_whose_methods_are_not_async_fails_like_any_other() -> None:
    """A mistake in a foreign store never counts as "not revoked"."""

    class Plain:
        def get(self, ref: str) -> None:
            """Not awaitable."""

    with pytest.raises(StoreUnavailable) as caught:
        await TimeoutStore(cast("Store", Plain()), seconds=60).get("r")
    assert caught.value.reason == "store_error"


async def test_who_cancels_from_outside_is_not_told_of_a_time_out() -> None:
    """A client that hangs up, or a time limit around the request, is neither a failure of the store nor swallowed."""
    with anyio.CancelScope() as outer:
        outer.cancel()
        await TimeoutStore(scripted(anyio.sleep_forever), seconds=60).get("r")
    assert outer.cancelled_caught
    with pytest.raises(TimeoutError), anyio.fail_after(0):
        await TimeoutStore(scripted(anyio.sleep_forever), seconds=60).get("r")


def test_the_other_store_s_reach_is_told_and_its_repr_is_not() -> None:
    """A `repr` may hold an address."""
    within = TimeoutStore(scripted(anyio.sleep_forever), seconds=60)
    assert within.scope is StoreScope.NETWORK
    assert repr(within) == "<TimeoutStore of Scripted>"


# --- how the time is counted ---------------------------------------------------------------------


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_time_in_which_the_event_loop_did_not_run_counts_once() -> None:
    """What was answered meanwhile has as many rounds of the loop as it needs to arrive."""
    with _time_limit(0.01):
        time.sleep(0.03)  # noqa: ASYNC251  # as other processes do to it on a busy machine
        for _ in range(STEPS - 2):
            await anyio.lowlevel.checkpoint()
