"""`session.data`: what it keeps, what it refuses, and that parallel changes lose nothing."""

import functools
import math
from contextlib import suppress
from datetime import date, timedelta
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from apps import Server, sessions
from clients import START, Clock
from hypothesis import given
from hypothesis import strategies as st

from mcp_sessions._errors import DataError, DataNotInteger, DataNotJSON, DataTooLarge
from mcp_sessions._session.data import MAX_KEY_BYTES, MAX_ROUNDS, Data, DataStore, Namespace
from mcp_sessions.stores._memory import MemoryStore

SHELF = Namespace(owner="ses_one", expires_at=START + 3600, max_bytes=1000)
LIMIT = 100  # bytes of one value


def made(store: DataStore, clock: Clock | None = None) -> Data:
    return Data(store, SHELF, clock=clock or Clock(), max_value_bytes=LIMIT)


@pytest.fixture
def data(clock: Clock) -> Data:
    """What a store keeps, and what parallel calls make of it, is shown for each by its contract."""
    return made(MemoryStore(clock=clock), clock)


# --- keeping -------------------------------------------------------------------------------------

JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)
KEYS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=MAX_KEY_BYTES // 4)


@given(key=KEYS, value=JSON)
async def test_every_json_value_comes_back_as_it_is(key: str, value: Any) -> None:
    shelf = Namespace(owner="ses_one", expires_at=START + 3600, max_bytes=1 << 20)
    data = Data(MemoryStore(clock=Clock()), shelf, clock=Clock(), max_value_bytes=1 << 20)
    await data.set(key, value)
    kept = await data.get(key, "nothing")
    assert (kept, repr(kept)) == (value, repr(value))


async def test_what_is_not_there_or_was_deleted_is_the_default_and_none_is_a_value(data: Data) -> None:
    assert [await data.get("a"), await data.get("a", 5), await data.get("a")] == [None, 5, None]
    await data.set("a", None)
    assert await data.get("a", 5) is None
    for _ in range(2):
        await data.delete("a")
    assert await data.get("a", 5) == 5


@pytest.mark.parametrize("ttl", [10, 10.0, timedelta(seconds=10)])
async def test_a_value_may_have_a_time(ttl: float | timedelta, data: Data, clock: Clock) -> None:
    """In seconds or as a `timedelta`; setting it again without one makes it stay.

    A change leaves the time as it was: a counter with a time is a budget per window.
    """
    await data.set("a", 1, ttl=ttl)
    await data.set("b", 1, ttl=ttl)
    await data.set("b", 2)
    await data.increment("a")
    await data.update("a", lambda number: number * 10)
    clock.now = START + 9.9
    assert await data.get("a") == 20
    clock.now = START + 10.1
    assert (await data.get("a"), await data.get("b"), await data.increment("a")) == (None, 2, 1)


@pytest.mark.parametrize("ttl", [3600, 10**400, float("inf"), timedelta.max])
async def test_a_time_beyond_the_session_is_the_session_s(ttl: float | timedelta, data: Data, clock: Clock) -> None:
    await data.set("a", 1, ttl=ttl)
    clock.now = START + 3599
    assert await data.get("a") == 1


# --- changing ------------------------------------------------------------------------------------


async def test_an_update_is_given_a_copy_of_the_value_and_returns_the_new_one(data: Data) -> None:
    """Which it may change: the caller's default stays as it is."""
    default: list[int] = []

    def appended(found: list[int]) -> list[int]:
        found.append(1)
        return found

    assert [await data.update("a", appended, default) for _ in range(2)] == [[1], [1, 1]]
    assert default == []
    with pytest.raises(TypeError, match=r"^the function of update\(\) returned None: .* delete\(\) removes one$"):
        await data.update("a", lambda found: found.append(3))
    assert await data.update("b", lambda found: found) is None
    assert await data.get("b", "nothing") is None
    assert await data.update("b", lambda found: [found], default="unused") == [None]


class Contended:
    """A store in which another change comes before each of the first so many swaps."""

    def __init__(self, times: int) -> None:
        self.store = MemoryStore(clock=Clock())
        self.times = times

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    async def compare_and_swap(self, shelf: Namespace, key: str, old: bytes | None, new: bytes | None) -> bool:
        if self.times:
            self.times -= 1
            await self.store.add(shelf, key, 1)
        return await self.store.compare_and_swap(shelf, key, old, new)


async def test_an_update_that_was_overtaken_is_made_again_a_thousand_times() -> None:
    """With the value that is there now. Each lost round is another change's success; one that never ends says so."""
    assert await made(Contended(MAX_ROUNDS - 1)).update("a", lambda found: found, default=0) == MAX_ROUNDS - 1
    store = Contended(MAX_ROUNDS)
    with pytest.raises(DataError, match="lost against 1000 other changes"):
        await made(store).update("a", lambda found: found, default=0)
    assert await made(store).get("a") == MAX_ROUNDS


async def test_parallel_updates_of_one_process_take_turns() -> None:
    """So none has to be made again; each fails for itself, and no lock is kept when they are done."""

    class Slow(MemoryStore):
        reads = 0

        async def read(self, namespace: Namespace, key: str) -> bytes | None:
            found = await super().read(namespace, key)
            self.reads += 1
            await anyio.lowlevel.checkpoint()
            return found

    store = Slow(clock=Clock())
    runtime = sessions(Server(), store=store)._runtime

    async def one(number: int) -> None:
        with suppress(ZeroDivisionError):
            data = runtime.data("ses_one", START + 3600)
            await data.update(f"{number % 2}", lambda found: found + 1 // (number % 3), default=0)

    async with anyio.create_task_group() as group:
        for number in range(18):
            group.start_soon(one, number)
    assert store.reads == 18
    assert not runtime._locks


async def test_an_increment_counts_from_nothing_and_returns_the_sum_of_up_to_64_bits(data: Data) -> None:
    assert [await data.increment("a"), await data.increment("a", 10), await data.increment("a", by=-12)] == [1, 11, -1]
    for value, by in ((2**63 - 1, 1), (-(2**63), -1)):
        await data.set("a", value - by)
        assert await data.increment("a", by) == await data.get("a") == value


# --- refusing ------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["", "a\0", "\ud800", "a" * 257, "\u00e9" * 129, b"a", None], ids=repr)
async def test_a_key_that_cannot_be_a_name_is_refused_by_every_call(key: Any, data: Data) -> None:
    await data.set("../\n%s{}*\u202e".ljust(252), 1)  # and no other: of up to 256 bytes
    calls = [data.get(key), data.set(key, 1), data.delete(key), data.update(key, lambda found: 1), data.increment(key)]
    for call in calls:
        with pytest.raises(DataError, match="1 to 256 bytes in UTF-8"):
            await call


NESTED: list[Any] = []
for _ in range(20_000):
    NESTED = [NESTED]
CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)
REFUSED: dict[str, list[Any]] = {
    "a value of type object that has no JSON form": [[1, {"a": object()}]],
    "a value of type str that has no JSON form": ["\ud800", {"\udfff": 1}],
    "a key of type tuple that has no JSON form": [{(1, 2): 1}],
    "a value that has no JSON form": [NESTED, CIRCLE],
    "a value of type float that would not come back as it is": [math.nan, [1.5, math.inf]],
    "a value of type tuple that would not come back as it is": [(1,)],
    "a key of type int that would not come back as it is": [{1: 2}],
    "a value of type date that would not come back as it is": [{"a": date(2026, 7, 28)}],
    "a value of type frozenset that would not come back as it is": [[frozenset()]],
}


@pytest.mark.parametrize("why", REFUSED)
async def test_what_is_not_json_is_refused_and_changes_nothing(why: str, data: Data) -> None:
    """As a value, as an update's result and as its default; with the reason, and nothing of the value."""
    await data.set("a", 1)
    for value in REFUSED[why]:
        for call in (
            data.set("a", value),
            data.update("a", functools.partial(lambda value, found: value, value)),
            data.update("a", lambda found: 2, default=value),
        ):
            with pytest.raises(DataNotJSON, match=f"^session data must be JSON: it holds {why}, under 'a'$"):
                await call
    assert await data.get("a") == 1


async def test_a_value_may_be_as_long_as_the_limit_and_no_longer(data: Data) -> None:
    await data.set("a", "x" * (LIMIT - 2))
    for call in (data.set("a", "x" * (LIMIT - 1)), data.update("a", lambda found: found + "x")):
        with pytest.raises(DataTooLarge, match=r"takes 101 bytes as JSON; the limit is 100 \(Limits.value_bytes\)"):
            await call
    assert await data.get("a") == "x" * (LIMIT - 2)


@pytest.mark.parametrize(
    ("value", "by"),
    [
        *((kept, 1) for kept in ("1", 1.5, None, [1], True, 2**63)),
        *((1, by) for by in (1.0, "1", True, None, 2**63, -(2**63) - 1)),
        *((2**63 - 1, 1), (-(2**63), -1), (1, 2**63 - 1)),  # a sum beyond 64 bits
    ],
    ids=repr,
)
async def test_only_integers_of_64_bits_are_added(value: Any, by: Any, data: Data) -> None:
    await data.set("a", value)
    with pytest.raises(DataNotInteger):
        await data.increment("a", by)
    assert await data.get("a") == value


@pytest.mark.parametrize("ttl", [0, -1, float("nan"), True, "10", timedelta(0)], ids=repr)
async def test_a_ttl_that_is_no_time_is_refused_with_the_remedy(ttl: Any, data: Data) -> None:
    """A caller that writes 0 means to delete."""
    with pytest.raises(DataError, match=r"^ttl must be more than 0 seconds, .* delete\(\) it$"):
        await data.set("a", 1, ttl=ttl)
    assert await data.get("a", "nothing") == "nothing"


async def test_an_async_function_is_refused_with_the_remedy(data: Data) -> None:
    """It would be awaited between reading and writing, and again; nothing of it runs."""

    async def later(found: object) -> None:
        """Never begun."""

    for fn in (later, functools.partial(later), lambda found: later([found])):
        with pytest.raises(TypeError, match=r"^update\(\) takes a plain function, .* and pass that$"):
            await data.update("a", fn)
    assert await data.get("a", "nothing") == "nothing"


def test_data_without_an_event_loop_behind_it_cannot_be_waited_for() -> None:
    """As where an application makes `Data` itself."""
    with pytest.raises(DataError, match=r"^this session data has no event loop .*: await its methods$"):
        made(MemoryStore()).sync.get("k")
