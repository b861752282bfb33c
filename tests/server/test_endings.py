"""The end of a session: in one order, by one worker, and to its end, which open streams find here and elsewhere."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from apps import Server, sessions
from clients import DEADLINE, Clock, RealClient
from failing import Failing
from sources import claims
from streaming import Streaming

from mcp_sessions import Session
from mcp_sessions._errors import StoreUnavailable
from mcp_sessions._server import lifecycle as room
from mcp_sessions._server import resumption
from mcp_sessions._session.claims import AUDIENCE
from mcp_sessions._session.session import EndedSession
from mcp_sessions.events import SessionDeleted, SessionEvent
from mcp_sessions.stores import Record
from mcp_sessions.stores._base import Ended


class Worker(RealClient):
    """A client of one worker, whose sessions each have a browser; what the worker makes and reports is kept."""

    def __init__(self, on_end: Any = None, store: Failing | None = None, server: Any = None, **options: Any) -> None:
        self.clock = Clock()
        self.store = store or Failing(clock=self.clock)
        self.facts: list[SessionEvent] = []
        self.made: list[Session] = []
        timeout = options.pop("timeout", DEADLINE)
        hooks = {"on_end": on_end, "on_create": self.on_create, "listen": self.facts.append}
        app = sessions(server or Server(), store=self.store, clock=self.clock, **hooks, **options)
        self.runtime = app._runtime
        self.runtime.terminator = replace(self.runtime.terminator, pause=0, timeout=timeout)
        super().__init__(app)

    async def on_create(self, session: Session, params: Any, scope: Any) -> None:
        self.made.append(session)
        await session.data.set("browser", 7)

    @property
    def ends(self) -> list[SessionEvent]:
        return [fact for fact in self.facts if isinstance(fact, SessionDeleted)]

    async def has_data(self) -> bool:
        return await self.made[0].data.get("browser") is not None


async def away(*_: object) -> None:
    raise StoreUnavailable


async def test_everything_happens_in_its_order() -> None:
    """When the hook runs, the session is refused, its streams have ended, and its data can still be read."""
    seen: list[Any] = []

    async def on_end(session: EndedSession, reason: str) -> None:
        seen.append((session.ref, session.created_at, (session.expires_at - session.created_at).days, reason))
        refused = (await worker.tool(session=held)).error["data"]["reason"]
        seen.append((refused, stream.messages[-1]["more_body"], await session.data.get("browser"), worker.ends))
        # No other worker may run it as long as this one's lease lasts.
        seen.extend(await worker.store.claim_ended(audience=AUDIENCE, idle_timeout=None, lease=60, limit=10))

    worker = Worker(on_end, server=Streaming(), tracked=True)
    held = await worker.create()
    (made,) = worker.made
    worker.clock.now += 90
    with anyio.fail_after(DEADLINE):
        async with worker.under_way("tools/call", session=held) as stream:
            await stream.next_event()
            await worker.delete(held)
            worker.app.app.go.set()  # type: ignore[attr-defined]
    deleted = SessionDeleted(made.ref, "deleted", 90, made.traceparent, "client")
    assert seen == [(made.ref, made.created_at, 7, "deleted"), ("ended", False, 7, [deleted])]
    assert not await worker.has_data()
    assert await worker.store.claim_ended(audience=AUDIENCE, idle_timeout=None, lease=60, limit=10) == []


@pytest.mark.parametrize("tracked", [True, False])
async def test_of_all_who_end_it_one_runs_the_hook(tracked: bool) -> None:
    """Whether sessions are recorded or not."""
    ran: list[str] = []
    one, other = (
        Worker(lambda session, reason: ran.append(session.ref), store, tracked=tracked) for store in [Failing()] * 2
    )
    held = await one.create()
    one.store.before["revoke"] = lambda *_: other.delete(held)
    await one.delete(held)
    assert ran == [one.made[0].ref]
    assert (len(one.ends), len(other.ends)) == (0, 1)


async def test_a_caller_who_leaves_does_not_leave_it_half_ended() -> None:
    """The request is cancelled while the hook runs, and the hook runs to its end."""
    inside, go, ran = anyio.Event(), anyio.Event(), []

    async def on_end(session: EndedSession, reason: str) -> None:
        inside.set()
        await go.wait()
        ran.append(reason)

    worker = Worker(on_end)
    held = await worker.create()
    async with anyio.create_task_group() as group:
        group.start_soon(worker.delete, held)
        await inside.wait()
        group.cancel_scope.cancel()
        go.set()
    assert ran == ["deleted"]
    assert not await worker.has_data()


async def test_what_the_store_did_not_take_has_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asked for it learns so, and it is tried again, but not for ever: a record that is left expires."""
    monkeypatch.setattr(room, "MAX_ATTEMPTS", 2)
    ran, tried = list[str](), list[int]()

    def error() -> Exception:
        tried.append(1)
        return StoreUnavailable()

    worker = Worker(lambda session, reason: ran.append(reason), Failing("revoke", error=error))
    held = await worker.create()
    assert (await worker.delete(held)).status == 503
    await anyio.wait_all_tasks_blocked()
    assert (len(tried), ran, worker.ends, await worker.has_data()) == (3, [], [], True)
    worker.store.failing.clear()
    worker.store.before["revoke"] = away
    assert (await worker.delete(held)).status == 503
    with anyio.fail_after(DEADLINE):
        while await worker.has_data():
            await checkpoint()
    assert (ran, len(worker.ends)) == (["deleted"], 1)


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
    held = await worker.create()
    caplog.clear()
    await worker.delete(held)
    assert not await worker.has_data()
    assert caplog.messages == ([] if line is None else [f"on_end of session {worker.made[0].ref} {line}"])
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
    assert (await worker.delete(await worker.create())).status == 200
    assert not await worker.has_data()


async def test_a_hook_is_cancelled_with_its_worker(caplog: pytest.LogCaptureFixture) -> None:
    """Without a word about patience; the next worker runs it."""
    worker = Worker(lambda session, reason: anyio.sleep_forever())
    worker.store.failing.add("purge")
    caplog.clear()
    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as group:
            group.start_soon(worker.runtime.terminator.finish, Ended(Record.of(claims()), "idle"))
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()
    assert caplog.messages == []


async def test_a_store_that_was_away_is_told_later_to_forget(caplog: pytest.LogCaptureFixture) -> None:
    """Else another worker would run the hook again, though it has run."""
    ran: list[str] = []

    def on_end(session: EndedSession, reason: str) -> None:
        ran.append(reason)
        worker.store.before["purge"] = away

    worker = Worker(on_end, tracked=True)
    held = await worker.create()
    caplog.clear()
    await worker.delete(held)
    assert caplog.messages == [f"data of ended session {worker.made[0].ref} not deleted yet: store unavailable"]
    await anyio.wait_all_tasks_blocked()
    assert (ran, await worker.has_data()) == (["deleted"], False)


async def test_an_end_elsewhere_is_found_by_asking_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the store was away, in parts, so that each answer comes in time; no other session's stream is cut."""
    monkeypatch.setattr(resumption, "BATCH", 1)
    here, there = (Worker(store=store, server=Streaming()) for store in [Failing()] * 2)
    here.runtime.streams._interval = 0.001
    other, held = [await here.create() for _ in range(2)]

    async def fail_next_look_up(*_: object) -> None:
        here.store.before["look_up"] = away

    with anyio.fail_after(DEADLINE):
        async with (
            here.under_way("tools/call", session=other) as kept,
            here.under_way("tools/call", session=held) as stream,
        ):
            await kept.next_event()
            await stream.next_event()
            here.store.before["revoke"] = fail_next_look_up
            await there.delete(held)
            assert "-32043" in await stream.next_event("error")
            assert kept.messages[-1]["more_body"]
            here.app.app.go.set()  # type: ignore[attr-defined]
