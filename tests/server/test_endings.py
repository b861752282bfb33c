"""The end of a session: in one order, by one worker, and to its end, which open streams find here and elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from clients import DEADLINE, START
from sources import claims

from mcp_sessions._errors import StoreUnavailable
from mcp_sessions._server import lifecycle as room
from mcp_sessions._server import resumption
from mcp_sessions._server.lifecycle import Terminator
from mcp_sessions._server.resumption import StreamRequest, Streams
from mcp_sessions._session.claims import AUDIENCE, Claims, utc
from mcp_sessions._session.data import Data, Namespace
from mcp_sessions._session.events import SessionDeleted, SessionEvent
from mcp_sessions._session.session import EndedSession
from mcp_sessions.stores._base import Ended, Record, SessionStatus
from mcp_sessions.stores._memory import MemoryStore

END = START + 3600
TRACE = f"00-{1:032x}-{2:016x}-01"
CLAIMS = claims(trace=TRACE)


class OpenStream:
    """A stream that is open in a process until it is cut."""

    def __init__(self, streams: Streams, claims: Claims, *, ended_by_this_request: bool = False) -> None:
        session = SimpleNamespace(ended_by_own_request=ended_by_this_request, close=lambda: None)
        self.request = StreamRequest(claims, b"1", "tools/call", session=session)
        self.cut = anyio.Event()
        streams.add(self.request, self.terminate)

    async def terminate(self) -> None:
        self.cut.set()

    @property
    def is_cut(self) -> bool:
        return self.cut.is_set()


class Store(MemoryStore):
    """A store that may be away, and tells when a session was forgotten, and for how many it was asked."""

    def __init__(self) -> None:
        super().__init__(clock=lambda: START)
        self.away = 0  # how many calls fail
        self.asked: list[int] = []
        self.was_asked = anyio.Event()
        self.finished: list[str] = []
        self.has_finished = anyio.Event()

    def _answer(self) -> None:
        if self.away > 0:
            self.away -= 1
            raise StoreUnavailable

    async def revoke(self, record: Record, *, reason: str, lease: float | None) -> bool:
        self._answer()
        return await super().revoke(record, reason=reason, lease=lease)

    async def statuses(self, claims: Sequence[Claims]) -> list[SessionStatus]:
        self.asked.append(len(claims))
        self.was_asked.set()
        self._answer()
        return await super().statuses(claims)

    async def purge(self, *refs: str) -> None:
        self._answer()
        await super().purge(*refs)
        self.finished += refs
        self.has_finished.set()


class Worker:
    """One worker, and what happens on it, in order."""

    def __init__(self, store: Store, on_end: Callable[..., Any] | None = None, **options: float) -> None:
        self.steps: list[str] = []
        self.facts: list[SessionEvent] = []
        self.store = store
        self.streams = Streams(store)
        self.terminator = Terminator(
            store,
            self.streams,
            on_end=on_end,
            emit=self.facts.append,
            data=self.data,
            clock=lambda: START + 90,
            **{"pause": 0, **options},
        )

    def data(self, owner: str, until: int) -> Data:
        return Data(self.store, Namespace(owner, until, 1000), clock=lambda: START, max_value_bytes=1000)

    async def recorded(self) -> Worker:
        """With a record of the session."""
        await self.store.register(Record(CLAIMS.ref, None, START, END, seen_at=START))
        return self

    async def end(self) -> None:
        with anyio.fail_after(DEADLINE):
            await self.terminator.end(CLAIMS, "logout")


async def test_everything_happens_in_its_order() -> None:
    """When the hook runs, the session is refused, its streams have ended, and its data can still be read."""
    seen: list[Any] = []

    async def on_end(session: EndedSession, reason: str) -> None:
        seen.append((session.ref, session.created_at, session.expires_at, reason))
        seen.append((await store.status(CLAIMS), stream.is_cut, await session.data.get("browser")))
        seen.extend(worker.facts)
        # No other worker may run it as long as this one's lease lasts.
        seen.extend(await store.claim_ended(audience=AUDIENCE, idle_timeout=None, lease=60, limit=10))

    store = Store()
    worker = await Worker(store, on_end).recorded()
    await worker.data(CLAIMS.ref, END).set("browser", 7)
    stream = OpenStream(worker.streams, CLAIMS)
    await worker.end()
    assert seen == [
        (CLAIMS.ref, utc(START), utc(END), "logout"),
        (SessionStatus.ENDED, True, 7),
        SessionDeleted(CLAIMS.ref, "logout", 90, TRACE),
    ]
    assert await worker.data(CLAIMS.ref, END).get("browser") is None
    assert await store.claim_ended(audience=AUDIENCE, idle_timeout=None, lease=60, limit=10) == []
    assert await store.status(CLAIMS) is SessionStatus.ENDED


@pytest.mark.parametrize("tracked", [True, False])
async def test_of_all_who_end_it_one_runs_the_hook(tracked: bool) -> None:
    """Whether sessions are recorded or not; the others end their streams."""
    ran: list[str] = []
    store = Store()
    workers = [Worker(store, lambda session, reason: ran.append(session.ref)) for _ in range(5)]
    if tracked:
        await workers[0].recorded()
    streams = [OpenStream(worker.streams, CLAIMS) for worker in workers]
    async with anyio.create_task_group() as group:
        for worker in workers:
            group.start_soon(worker.end)
    assert ran == [CLAIMS.ref]
    assert all(stream.is_cut for stream in streams)
    assert sum(len(worker.facts) for worker in workers) == 1


async def test_a_caller_who_leaves_does_not_leave_it_half_ended() -> None:
    """The request is cancelled while the hook runs, and the hook runs to its end."""
    inside, go, ran = anyio.Event(), anyio.Event(), []

    async def on_end(session: EndedSession, reason: str) -> None:
        inside.set()
        await go.wait()
        ran.append(reason)

    worker = Worker(Store(), on_end)
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
    worker = Worker(Store(), lambda session, reason: ran.append(reason))
    stream = OpenStream(worker.streams, CLAIMS)
    worker.store.away = 1
    with pytest.raises(StoreUnavailable):
        await worker.end()
    assert (ran, stream.is_cut, worker.facts) == ([], False, [])
    await worker.end()
    assert (ran, stream.is_cut) == (["logout"], True)


async def fails(session: EndedSession, reason: str) -> None:
    raise LookupError


async def takes_long(session: EndedSession, reason: str) -> None:
    await anyio.sleep_forever()


@pytest.mark.parametrize(
    ("on_end", "line"),
    [
        (fails, "raised LookupError"),
        (takes_long, "cancelled after 0.05 s"),
        (None, None),
    ],
)
async def test_whatever_the_hook_does_the_session_has_ended(
    on_end: Callable[..., Any] | None, line: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Its data is forgotten, before another worker could take over and run the hook a second time."""
    worker = Worker(Store(), on_end, timeout=0.05)
    await worker.data(CLAIMS.ref, END).set("a", 1)
    await worker.end()
    assert worker.store.finished == [CLAIMS.ref]
    assert await worker.data(CLAIMS.ref, END).get("a") is None
    assert [text for text in caplog.messages if line is not None] == [f"on_end of session {CLAIMS.ref} {line}"] * bool(
        line
    )
    assert room.HOOK_TIMEOUT < room.LEASE


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_hook_that_awaits_what_it_has_cancelled_has_run() -> None:
    """On asyncio the task's cancellation comes back to who awaits it; it must not cancel the ending."""

    async def on_end(session: EndedSession, reason: str) -> None:
        task = asyncio.create_task(anyio.sleep_forever())
        await anyio.wait_all_tasks_blocked()
        task.cancel()
        await task

    worker = Worker(Store(), on_end)
    await worker.end()
    assert worker.store.finished == [CLAIMS.ref]


class TestAHookThat:
    async def test_is_cancelled_with_its_worker(self, caplog: pytest.LogCaptureFixture) -> None:
        """Without a word about patience; the next worker runs it."""
        worker = Worker(Store(), lambda session, reason: anyio.sleep_forever())
        with anyio.fail_after(DEADLINE):
            async with anyio.create_task_group() as group:
                group.start_soon(worker.terminator.finish, Ended(Record.of(CLAIMS), "idle"))
                await anyio.wait_all_tasks_blocked()
                group.cancel_scope.cancel()
        assert (caplog.messages, worker.store.finished) == ([], [])


class TestForgetting:
    async def test_a_store_that_was_away_is_told_later(self, caplog: pytest.LogCaptureFixture) -> None:
        """Else another worker would run the hook again, though it has run."""
        ran: list[str] = []

        def on_end(session: EndedSession, reason: str) -> None:
            ran.append(reason)
            worker.store.away = 3

        worker = await Worker(Store(), on_end).recorded()
        await worker.end()
        assert worker.store.finished == []
        with anyio.fail_after(DEADLINE):
            await worker.store.has_finished.wait()
        assert (ran, worker.store.finished) == (["logout"], [CLAIMS.ref])
        assert caplog.messages == [f"data of ended session {CLAIMS.ref} not deleted yet: store unavailable"]

    async def test_it_is_not_tried_for_ever(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """By then its lease has run out, and another worker has it; a record that is left is freed when it expires."""
        monkeypatch.setattr(room, "MAX_ATTEMPTS", 2)
        worker = Worker(Store())
        ends = partial(worker.terminator.end_record, Record.of(CLAIMS), "deleted")
        for attempt in (partial(worker.store.purge, CLAIMS.ref), ends):
            worker.store.away = 3
            await worker.terminator._retry(attempt)
            assert (worker.store.away, worker.store.finished) == (1, [])


A, B = claims(jti="a" * 22), claims(jti="b" * 22)


class TestStreamsEndedHere:
    async def test_all_streams_of_the_session_are_cut_but_that_of_the_request_that_ends_it(self) -> None:
        """Side by side: a client that reads slowly does not keep the others waiting. Also where there are none."""
        streams = Streams(Store())
        await streams.end(A.ref)

        class Slow(OpenStream):
            async def terminate(self) -> None:
                await one.cut.wait()

        Slow(streams, A)
        one, other = OpenStream(streams, A), OpenStream(streams, B)
        spared = OpenStream(streams, A, ended_by_this_request=True)
        with anyio.fail_after(DEADLINE):
            await streams.end(A.ref)
        assert [one.is_cut, other.is_cut, spared.is_cut] == [True, False, False]
        left = {ref: [*of_session.values()] for ref, of_session in streams._open.items()}
        assert left == {A.ref: [spared.request], B.ref: [other.request]}


class TestStreamsEndedElsewhere:
    async def test_it_is_found_by_asking_again_where_the_store_is_away(self) -> None:
        """Only the streams of the session are cut, but for one whose request ended it, which is not known here yet."""
        store = Store()
        streams = Streams(store, interval=0.001)
        stream, other = OpenStream(streams, A), OpenStream(streams, B)
        spared = OpenStream(streams, A, ended_by_this_request=True)
        await store.revoke(Record.of(A), reason="logout", lease=60)
        store.away = 10**9
        with anyio.fail_after(DEADLINE):
            await store.was_asked.wait()
            assert not stream.is_cut
            store.away = 0
            await stream.cut.wait()
        assert (other.is_cut, spared.is_cut) == (False, False)

    async def test_nothing_is_asked_while_nothing_is_open(self) -> None:
        """The last stream that closes ends the asking, and the next one begins it again."""
        store = Store()
        streams = Streams(store, interval=0.001)
        for _ in range(2):
            stream = OpenStream(streams, A)
            assert streams._polling
            streams.remove(stream.request, stream.terminate)
            with anyio.fail_after(DEADLINE):
                while streams._polling:
                    await checkpoint()
        assert set(store.asked) <= {0}

    async def test_many_sessions_are_asked_for_in_parts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each answer has to come within the time that a store is given."""
        monkeypatch.setattr(resumption, "BATCH", 2)
        store = Store()
        streams = Streams(store, interval=60)
        for name in "abcdea":
            OpenStream(streams, claims(jti=name * 22))
        await streams._check_once()
        assert store.asked == [2, 2, 1]
