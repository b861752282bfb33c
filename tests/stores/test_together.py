"""Look-ups that come at the same time are asked together, and `freshness=` saves questions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import pytest
from apps import Server, sessions
from clients import Client
from reasons import refused

from mcp_sessions._errors import StoreUnavailable
from mcp_sessions._session.claims import AUDIENCE, Claims
from mcp_sessions.stores import MemoryStore, _together
from mcp_sessions.stores._base import STATE_KEY, Found, SessionStatus, Store
from mcp_sessions.stores._timeout import TimeoutStore
from mcp_sessions.stores._together import MAX_CLAIMS, QUESTIONS, LookUps
from mcp_sessions.testing._contract import (
    LATER,
    START,
    Clock,
    at_once,
    claim,
    namespace,
    register,
    revoke,
    session,
    statuses_in,
)

LIVE, ENDED, UNRECORDED = SessionStatus.LIVE, SessionStatus.ENDED, SessionStatus.UNRECORDED
CLAIMS = session()
FRESHNESS = 2.0  # seconds


class Gated(MemoryStore):
    """A store that notes its questions, and answers when the test lets it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.questions: list[tuple[int, dict[str, Any]]] = []
        self.gate = anyio.Event()
        self.error: Exception | None = None

    async def look_up(self, *claims: Claims, **options: Any) -> list[Found]:
        self.questions.append((len(claims), options))
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return await super().look_up(*claims, **options)


class Asked:
    """Look-ups that wait for a store, which has as many questions to answer as may be under way."""

    def __init__(self, group: Any, **options: Any) -> None:
        self.group = group
        self.store = Gated(clock=Clock())
        self.look_ups = LookUps(self.store, **options)
        self.answers: dict[str, Any] = {}

    async def begin(self) -> None:
        """Keep the store busy."""
        for n in range(QUESTIONS):
            self.group.start_soon(self.look_ups.ask, session(f"busy-{n}"))
        await anyio.wait_all_tasks_blocked()
        self.store.questions.clear()

    def ask(self, name: str, *claims: Claims, **options: Any) -> anyio.CancelScope:
        """Ask, and note the answer or the error under a name; return what cancels that."""
        scope = anyio.CancelScope()

        async def asking() -> None:
            with scope:
                try:
                    self.answers[name] = await self.look_ups.ask(*claims, **options)
                except StoreUnavailable as error:
                    self.answers[name] = error

        self.group.start_soon(asking)
        return scope

    async def answer(self) -> None:
        """Let the store answer from now on, until nothing waits any more."""
        await anyio.wait_all_tasks_blocked()
        self.store.gate.set()
        await anyio.wait_all_tasks_blocked()


async def test_look_ups_that_wait_are_one_question() -> None:
    """Each gets its own answer, with its state if it asked for one."""
    async with anyio.create_task_group() as group:
        asked = Asked(group)
        a, b = session("a"), session("b")
        await asked.store.write(namespace(a), STATE_KEY, b"{}")
        await revoke(asked.store, b)
        await asked.begin()
        asked.ask("both", a, b)
        asked.ask("state", a, state=True)
        asked.ask("nothing")
        await asked.answer()
    assert asked.answers["both"] == [Found(LIVE, b"{}"), Found(ENDED)]
    assert [asked.answers["state"], asked.answers["nothing"]] == [[Found(LIVE, b"{}")], []]
    assert asked.store.questions == [(3, {"state": True, "touch": False, "idle_timeout": None})]


async def test_a_question_has_a_bounded_number_of_sessions() -> None:
    """And no more than a few are under way."""
    async with anyio.create_task_group() as group:
        asked = Asked(group)
        await asked.begin()
        many = [session(f"s{n}") for n in range(2 * MAX_CLAIMS + 10)]
        for n in range(0, len(many), 2):
            asked.ask(f"{n}", *many[n : n + 2])
        await asked.answer()
    assert {tuple(answer) for answer in asked.answers.values()} == {(Found(LIVE), Found(LIVE))}
    assert sorted(number for number, _ in asked.store.questions) == [10, MAX_CLAIMS, MAX_CLAIMS]
    assert len(asked.answers) == len(many) // 2


async def test_every_session_of_a_question_is_used() -> None:
    """A session without a record is told apart in the same question."""
    async with anyio.create_task_group() as group:
        asked = Asked(group, touch=True, idle_timeout=900)
        await register(asked.store, session("a"))
        await asked.begin()
        asked.ask("a", session("a"))
        asked.ask("b", session("b"))
        await asked.answer()
    assert [asked.answers[name] for name in "ab"] == [[Found(LIVE)], [Found(UNRECORDED)]]
    assert asked.store.questions == [(2, {"state": False, "touch": True, "idle_timeout": 900})]


@pytest.mark.parametrize("cancelled", ["abc", "a", "b", "c", "ab", "bc", ""])
@pytest.mark.parametrize("is_sent", [False, True])
async def test_a_cancelled_look_up_cancels_no_other(cancelled: str, is_sent: bool) -> None:
    """Whether it waits or asks for the others, before or after the question is sent."""
    with anyio.fail_after(10):  # a look-up whose turn is lost waits for ever
        async with anyio.create_task_group() as group:
            asked = Asked(group)
            await asked.begin()
            scopes = {name: asked.ask(name, session(name)) for name in "abc"}
            await anyio.wait_all_tasks_blocked()
            if is_sent:  # the first answer lets those that wait be asked about, which then waits
                gate, asked.store.gate = asked.store.gate, anyio.Event()
                gate.set()
                await anyio.wait_all_tasks_blocked()
                assert [number for number, _ in asked.store.questions] == [3]
            for name in cancelled:
                scopes[name].cancel()
            await asked.answer()
            assert (await asked.look_ups.ask(CLAIMS)) == [Found(LIVE)]
    assert asked.answers == {name: [Found(LIVE)] for name in "abc" if name not in cancelled}
    assert asked.look_ups._queue().under_way == 0


async def test_a_look_up_that_is_cancelled_at_its_turn_passes_it_on() -> None:
    """In the same moment in which it is told to ask for the others."""
    with anyio.fail_after(10):  # a look-up whose turn is lost waits for ever
        async with anyio.create_task_group() as group:
            asked = Asked(group)
            await asked.begin()
            scopes = {name: asked.ask(name, session(name)) for name in "abc"}
            await anyio.wait_all_tasks_blocked()
            queue = asked.look_ups._queue()
            queue.next_question()  # as a question does that has its answer
            queue.under_way += 1
            scopes["a"].cancel()
            await asked.answer()
    assert asked.answers == {name: [Found(LIVE)] for name in "bc"}


async def test_each_look_up_has_an_error_of_its_own() -> None:
    """A refusal notes its session, which another one must not show."""
    async with anyio.create_task_group() as group:
        asked = Asked(group)
        for n in range(QUESTIONS):
            group.start_soon(partial(refused_as, "store_locked", asked.look_ups, session(f"busy-{n}")))
        await anyio.wait_all_tasks_blocked()
        for name in "abc":
            asked.ask(name, session(name))
        asked.store.error = StoreUnavailable("store_locked", cause="a reason")
        await asked.answer()
    errors = [asked.answers[name] for name in "abc"]
    assert {(error.reason, error.cause, error.retry_after) for error in errors} == {("store_locked", "a reason", 1)}
    assert len({*map(id, errors), id(asked.store.error)}) == 4


async def refused_as(reason: str, look_ups: LookUps, claims: Claims) -> None:
    with refused(reason):
        await look_ups.ask(claims)


def test_each_event_loop_has_its_own_questions() -> None:
    """A worker may run several, one after the other or in threads."""
    look_ups = LookUps(MemoryStore(clock=Clock()))
    for backend in ("asyncio", "trio", "asyncio"):
        asks = [partial(look_ups.ask, session(f"{n}")) for n in range(20)]
        assert anyio.run(at_once, asks, backend=backend) == [[Found(LIVE)]] * 20


# --- freshness: how long a worker may take a session for live that its store has called live ------


class Steady:
    """A monotonic clock that a test moves."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> Steady:
    """The clock by which a status is recent."""
    monkeypatch.setattr(_together, "time", steady := Steady())
    return steady


class Fresh(MemoryStore):
    freshness = FRESHNESS


@pytest.fixture
def workers(clock: Clock) -> tuple[Store, Store]:
    """Two workers on one store."""
    shared = Fresh(clock=clock)
    return TimeoutStore(shared, seconds=60), TimeoutStore(shared, seconds=60)


Use = Callable[[Any], Any]


async def recent(store: Any, claims: Claims, **options: Any) -> SessionStatus:
    """Return the status of a session for a request that brings the state itself."""
    (found,) = await LookUps(store, **options, recent=store.recent).ask(claims)
    return found.status


USES: list[Use] = [partial(recent, claims=CLAIMS), partial(recent, claims=CLAIMS, touch=True, idle_timeout=60)]
ENDS: list[Use] = [
    partial(revoke, claims=CLAIMS),
    lambda store: store.revoke_before(START + 1, audience=AUDIENCE, subject=None, expires_at=LATER),
]


@pytest.mark.parametrize("use", USES, ids=["status", "touch"])
@pytest.mark.parametrize("end", ENDS, ids=["revoke", "revoke_before"])
async def test_an_end_elsewhere_is_seen_when_the_status_is_old(
    workers: tuple[Store, Store], steady: Steady, use: Use, end: Use
) -> None:
    """And one by this worker at once, as in the list of streams, which never relies on it."""
    own, other = workers
    await register(own, CLAIMS)
    assert [await use(own), await use(other)] == [LIVE, LIVE]
    await end(other)
    assert [await use(own), await use(other)] == [LIVE, ENDED]
    assert await statuses_in(own, [CLAIMS]) == [ENDED]
    steady.now += FRESHNESS
    assert await use(own) is ENDED


async def test_an_answer_from_before_an_own_end_is_not_kept() -> None:
    """The question was under way when the session was ended."""

    class Slow(Fresh):
        async def look_up(self, *claims: Claims, **options: Any) -> list[Found]:
            answer = await super().look_up(*claims, **options)
            await revoke(own, claims[0])
            return answer

    own = TimeoutStore(Slow(clock=Clock()), seconds=60)
    assert [await recent(own, CLAIMS) for _ in range(2)] == [LIVE, ENDED]


async def test_a_use_that_was_not_noted_ends_no_session_sooner(
    workers: tuple[Store, Store], steady: Steady, clock: Clock
) -> None:
    """An idle session ends by so much later: for who asks, and for who claims it."""
    own, other = workers
    await register(own, CLAIMS)
    for seconds in (0, FRESHNESS - 0.1):  # the second is not noted
        clock.now = START + seconds
        assert await recent(own, CLAIMS, touch=True, idle_timeout=60) is LIVE
    for seconds, ended in ((62.9, []), (63.0, ["idle"])):
        clock.now = START + seconds
        assert [one.reason for one in await claim(other, idle_timeout=60)] == ended


async def test_what_is_remembered_is_bounded(workers: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch) -> None:
    """All is forgotten when there is too much; the next request asks."""
    monkeypatch.setattr(_together, "_MAX_RECENT", 2)
    own, other = workers
    names = [session(name) for name in "abc"]
    assert [await recent(own, one) for one in names] == [LIVE] * 3
    for one in names:
        await revoke(other, one)
    assert [await recent(own, one) for one in names] == [ENDED, ENDED, LIVE]


async def test_a_session_that_ended_elsewhere_cannot_be_forked(workers: tuple[Store, Store], clock: Clock) -> None:
    """The fork would outlive what is relaxed: the end of its parent is not its own."""
    own, other = workers
    client = Client(sessions(Server(), store=own, clock=clock))
    held = await client.create()
    assert (await client.tool(session=held)).session is not None
    await other.revoke_before(START + 1, audience=AUDIENCE, subject=None, expires_at=LATER)
    assert (await client.tool(session=held)).session is not None
    assert (await client.send("sessions/fork", session=held)).error["code"] == -32043
