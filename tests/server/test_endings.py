"""The end of a session: in one order, by one worker, and to its end, which open streams find here and elsewhere."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from apps import Server, sessions
from clients import DEADLINE, START, Clock
from sources import claims

from mcp_sessions import Claims, Record, SessionDeleted, SessionEvent
from mcp_sessions._errors import StoreUnavailable
from mcp_sessions._server import lifecycle as room
from mcp_sessions._server import resumption
from mcp_sessions._server.resumption import StreamRequest, Streams
from mcp_sessions._session.claims import AUDIENCE, utc
from mcp_sessions._session.session import EndedSession
from mcp_sessions.stores import MemoryStore
from mcp_sessions.stores._base import Ended, SessionStatus

TRACE = f"00-{1:032x}-{2:016x}-01"
CLAIMS, OTHER = claims(trace=TRACE), claims(jti="b" * 22)
RECORD = Record(CLAIMS.ref, None, START, CLAIMS.expires_at, seen_at=START)


class OpenStream:
    """A stream that is open in a process until it is cut."""

    def __init__(self, streams: Streams, claims: Claims, *, ended_by_this_request: bool = False) -> None:
        session = SimpleNamespace(ended_by_own_request=ended_by_this_request, close=lambda: None)
        self.request = StreamRequest(claims, b"1", "tools/call", session=session)
        self.cut = anyio.Event()
        streams.add(self.request, self.terminate)

    async def terminate(self) -> None:
        self.cut.set()


class Store(MemoryStore):
    """A store that may be away, and notes which sessions it forgot, and for how many it was asked."""

    def __init__(self) -> None:
        super().__init__(clock=lambda: START)
        self.away = 0  # how many calls fail
        self.asked: list[int] = []
        self.finished: list[str] = []

    def _answer(self) -> None:
        if self.away > 0:
            self.away -= 1
            raise StoreUnavailable

    async def revoke(self, record: Record, *, reason: str, lease: float | None) -> bool:
        self._answer()
        return await super().revoke(record, reason=reason, lease=lease)

    async def statuses(self, claims: Sequence[Claims]) -> list[SessionStatus]:
        self.asked.append(len(claims))
        self._answer()
        return await super().statuses(claims)

    async def purge(self, *refs: str) -> None:
        self._answer()
        await super().purge(*refs)
        self.finished += refs


class Worker:
    """One worker, and what it reports."""

    def __init__(self, on_end: Any = None, store: Store | None = None, *, timeout: float = DEADLINE) -> None:
        self.facts: list[SessionEvent] = []
        self.store = store or Store()
        options = {"store": self.store, "on_end": on_end, "listen": self.facts.append, "clock": Clock(START + 90)}
        runtime = sessions(Server(), **options)._runtime
        self.streams, self.data = runtime.streams, runtime.data(CLAIMS.ref, CLAIMS.expires_at)
        self.terminator = replace(runtime.terminator, pause=0, timeout=timeout)

    async def end(self) -> None:
        with anyio.fail_after(DEADLINE):
            await self.terminator.end(CLAIMS, "logout")


async def test_everything_happens_in_its_order() -> None:
    """When the hook runs, the session is refused, its streams have ended, and its data can still be read."""
    seen: list[Any] = []

    async def on_end(session: EndedSession, reason: str) -> None:
        seen.append((session.ref, session.created_at, session.expires_at, reason))
        seen.append((await store.status(CLAIMS), stream.cut.is_set(), await session.data.get("browser")))
        seen.extend(worker.facts)
        # No other worker may run it as long as this one's lease lasts.
        seen.extend(await store.claim_ended(audience=AUDIENCE, idle_timeout=None, lease=60, limit=10))

    worker = Worker(on_end)
    await worker.store.register(RECORD)
    store = worker.store
    await worker.data.set("browser", 7)
    stream = OpenStream(worker.streams, CLAIMS)
    await worker.end()
    assert seen == [
        (CLAIMS.ref, utc(START), utc(CLAIMS.expires_at), "logout"),
        (SessionStatus.ENDED, True, 7),
        SessionDeleted(CLAIMS.ref, "logout", 90, TRACE),
    ]
    assert await worker.data.get("browser") is None
    assert await store.claim_ended(audience=AUDIENCE, idle_timeout=None, lease=60, limit=10) == []
    assert await store.status(CLAIMS) is SessionStatus.ENDED


@pytest.mark.parametrize("tracked", [True, False])
async def test_of_all_who_end_it_one_runs_the_hook(tracked: bool) -> None:
    """Whether sessions are recorded or not; the others end their streams."""
    ran: list[str] = []
    store = Store()
    workers = [Worker(lambda session, reason: ran.append(session.ref), store) for _ in range(5)]
    if tracked:
        await store.register(RECORD)
    streams = [OpenStream(worker.streams, CLAIMS) for worker in workers]
    async with anyio.create_task_group() as group:
        for worker in workers:
            group.start_soon(worker.end)
    assert ran == [CLAIMS.ref]
    assert all(stream.cut.is_set() for stream in streams)
    assert sum(len(worker.facts) for worker in workers) == 1


async def test_a_caller_who_leaves_does_not_leave_it_half_ended() -> None:
    """The request is cancelled while the hook runs, and the hook runs to its end."""
    inside, go, ran = anyio.Event(), anyio.Event(), []

    async def on_end(session: EndedSession, reason: str) -> None:
        inside.set()
        await go.wait()
        ran.append(reason)

    worker = Worker(on_end)
    async with anyio.create_task_group() as group:
        group.start_soon(worker.end)
        await inside.wait()
        group.cancel_scope.cancel()
        go.set()
    assert ran == ["logout"]
    assert worker.store.finished == [CLAIMS.ref]


async def test_what_the_store_did_not_take_has_not_ended() -> None:
    """No stream is cut, no hook runs, and who asked for it learns so."""
    ran: list[str] = []
    worker = Worker(lambda session, reason: ran.append(reason))
    stream = OpenStream(worker.streams, CLAIMS)
    worker.store.away = 1
    with pytest.raises(StoreUnavailable):
        await worker.end()
    assert (ran, stream.cut.is_set(), worker.facts) == ([], False, [])
    await worker.end()
    assert (ran, stream.cut.is_set()) == (["logout"], True)


async def fails(session: EndedSession, reason: str) -> None:
    raise LookupError


@pytest.mark.parametrize(
    ("on_end", "line"),
    [(fails, "raised LookupError"), (lambda *_: anyio.sleep_forever(), "cancelled after 0.05 s"), (None, None)],
    ids=["fails", "takes long", "there is none"],
)
async def test_whatever_the_hook_does_the_session_has_ended(
    on_end: Callable[..., Any] | None, line: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Its data is forgotten, before another worker could take over and run the hook a second time."""
    worker = Worker(on_end, timeout=0.05)
    await worker.data.set("a", 1)
    caplog.clear()
    await worker.end()
    assert worker.store.finished == [CLAIMS.ref]
    assert await worker.data.get("a") is None
    assert caplog.messages == ([] if line is None else [f"on_end of session {CLAIMS.ref} {line}"])
    assert room.HOOK_TIMEOUT < room.LEASE


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_hook_that_awaits_what_it_has_cancelled_has_run() -> None:
    """On asyncio the task's cancellation comes back to who awaits it; it must not cancel the ending."""

    async def on_end(session: EndedSession, reason: str) -> None:
        task = asyncio.create_task(anyio.sleep_forever())
        await anyio.wait_all_tasks_blocked()
        task.cancel()
        await task

    worker = Worker(on_end)
    await worker.end()
    assert worker.store.finished == [CLAIMS.ref]


async def test_a_hook_is_cancelled_with_its_worker(caplog: pytest.LogCaptureFixture) -> None:
    """Without a word about patience; the next worker runs it."""
    worker = Worker(lambda session, reason: anyio.sleep_forever())
    caplog.clear()
    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as group:
            group.start_soon(worker.terminator.finish, Ended(Record.of(CLAIMS), "idle"))
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()
    assert (caplog.messages, worker.store.finished) == ([], [])


async def test_a_store_that_was_away_is_told_later_to_forget(caplog: pytest.LogCaptureFixture) -> None:
    """Else another worker would run the hook again, though it has run."""
    ran: list[str] = []

    def on_end(session: EndedSession, reason: str) -> None:
        ran.append(reason)
        worker.store.away = 3

    worker = Worker(on_end)
    await worker.store.register(RECORD)
    caplog.clear()
    await worker.end()
    assert worker.store.finished == []
    await anyio.wait_all_tasks_blocked()
    assert (ran, worker.store.finished) == (["logout"], [CLAIMS.ref])
    assert caplog.messages == [f"data of ended session {CLAIMS.ref} not deleted yet: store unavailable"]


async def test_no_change_is_tried_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """By then its lease has run out, and another worker has it; a record that is left is freed when it expires."""
    monkeypatch.setattr(room, "MAX_ATTEMPTS", 2)
    worker = Worker()
    ends = partial(worker.terminator.end_record, Record.of(CLAIMS), "deleted")
    for attempt in (partial(worker.store.purge, CLAIMS.ref), ends):
        worker.store.away = 3
        await worker.terminator._retry(attempt)
        assert (worker.store.away, worker.store.finished) == (1, [])


async def test_all_streams_of_the_session_are_cut_but_that_of_the_request_that_ends_it() -> None:
    """Side by side: a client that reads slowly does not keep the others waiting. Also where there are none."""
    streams = Streams(Store())
    await streams.end(CLAIMS.ref)

    class Slow(OpenStream):
        async def terminate(self) -> None:
            await one.cut.wait()

    Slow(streams, CLAIMS)
    one, other = OpenStream(streams, CLAIMS), OpenStream(streams, OTHER)
    spared = OpenStream(streams, CLAIMS, ended_by_this_request=True)
    with anyio.fail_after(DEADLINE):
        await streams.end(CLAIMS.ref)
    assert [stream.cut.is_set() for stream in (one, other, spared)] == [True, False, False]
    left = {ref: [*of_session.values()] for ref, of_session in streams._open.items()}
    assert left == {CLAIMS.ref: [spared.request], OTHER.ref: [other.request]}


async def test_an_end_elsewhere_is_found_by_asking_again_where_the_store_is_away() -> None:
    """Only the streams of the session are cut, but for one whose request ended it, which is not known here yet."""
    streams = Streams(store := Store(), interval=0.001)
    stream, other = OpenStream(streams, CLAIMS), OpenStream(streams, OTHER)
    spared = OpenStream(streams, CLAIMS, ended_by_this_request=True)
    await store.revoke(Record.of(CLAIMS), reason="logout", lease=60)
    store.away = 3
    with anyio.fail_after(DEADLINE):
        await stream.cut.wait()
    assert (store.asked, other.cut.is_set(), spared.cut.is_set()) == ([2] * 4, False, False)


async def test_many_sessions_are_asked_for_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer has to come within the time that a store is given."""
    monkeypatch.setattr(resumption, "BATCH", 2)
    streams = Streams(store := Store(), interval=60)
    for name in "abcdea":
        OpenStream(streams, claims(jti=name * 22))
    await streams._check_once()
    assert store.asked == [2, 2, 1]
