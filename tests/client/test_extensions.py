"""Forks and lists from the client's side, and the trace context of its own requests."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import partial
from itertools import count
from typing import Any

import anyio
import pytest
from clients import SESSION_KEY
from opentelemetry import baggage, context
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState, set_span_in_context

from mcp_sessions.client import (
    ListedSession,
    MemoryStorage,
    NoAnswer,
    NotOffered,
    Refused,
    SessionNotFound,
    SessionPage,
)

from .scripted import Answer, Rule, Server, calling, error, plain, session_of, storing, talk

OFFERED = {"fork": True, "list": True}
REF = {"ref": "ses_a", "createdAt": "2026-07-28T12:00:00Z", "lastSeenAt": "2026-07-28T12:01:00Z"}
LISTED = {"sessions": [{**REF, "expiresAt": "2026-08-04T12:00:00Z", "current": True}]}


def offering(settings: Any = OFFERED, **rules: Rule) -> Server:
    """A server with extensions, and what it answers; forks are numbered."""
    numbers = count(1)

    def offer(message: dict[str, Any]) -> Answer:
        return {"result": {"capabilities": {"experimental": {"sessions": settings}}}}

    def fork(message: dict[str, Any]) -> Answer:
        echo = {**(session_of(message) or {}), "state": "moved on"}
        return {"result": {"session": {"sessionId": f"fork-{next(numbers)}"}, "_meta": {SESSION_KEY: echo}}}

    usual: dict[str, Rule] = {
        "initialize": offer,
        "server/discover": offer,
        "sessions/fork": fork,
        "sessions/list": lambda message: {"result": LISTED},
    }
    return Server({**usual, **{f"sessions/{name}": rule for name, rule in rules.items()}})


def asked(server: Server, method: str) -> list[dict[str, Any]]:
    """The params that a method was sent with, but for `_meta`."""
    return [{name: value for name, value in sent["params"].items() if name != "_meta"} for sent in server.sent(method)]


@pytest.mark.parametrize("modern", [False, True])
async def test_a_fork_is_a_session_like_any_other(modern: bool) -> None:
    """Calls go in it; the parent goes on, with the state that came with the answer; both are deleted on leaving."""
    server = offering()
    async with talk(server, modern=modern) as (sessions, caller):
        await caller.ask("tools/call")
        fork = await sessions.fork(params={"task": "pay"})
        with sessions.use(fork):
            await caller.ask("tools/call")
        await caller.ask("tools/call")
    assert asked(server, "sessions/fork") == [{"task": "pay"}]
    assert server.carried("sessions/fork") == ["id-1"]
    assert server.carried("tools/call") == ["id-1", "fork-1", "id-1"]
    assert session_of(server.sent("tools/call")[-1]) == {"sessionId": "id-1", "state": "moved on"}
    assert {*server.carried("sessions/delete")} == {"fork-1", "id-1"}


async def test_a_fork_of_what_has_not_begun_begins_it() -> None:
    server = offering()
    async with talk(server) as (sessions, _):
        first = await sessions.fork(sessions.new())
        second = await sessions.fork(first)
        assert (first.id, second.id) == ("fork-1", "fork-2")
    assert server.carried("sessions/fork") == ["id-1", "fork-1"]


async def test_a_fork_with_a_name_is_kept() -> None:
    """Under a name that is free: of no other session, nor of its parent."""
    server, storage = offering(), MemoryStorage()
    for connection in ("first", "second"):
        sessions = storing(server, storage)
        async with calling(sessions):
            fork = sessions.open("helper") if connection == "second" else await sessions.fork(name="helper")
            assert (fork.id, sessions.open("helper")) == ("fork-1", fork)
            for parent, name in ((None, "helper"), (sessions.open("thread"), "thread")):
                with pytest.raises(ValueError, match=f"'{name}'"):
                    await sessions.fork(parent, name=name)
            with sessions.use(None), pytest.raises(ValueError, match="no session is selected"):
                await sessions.fork()


async def test_a_fork_that_is_being_created_has_its_name() -> None:
    """A second fork is refused before it is sent, or nobody would hold it; a call in it waits, and creates no other."""
    server = offering()
    server.late = {"sessions/fork"}
    async with talk(server) as (sessions, caller), anyio.create_task_group() as tasks:
        await caller.ask("tools/call")
        tasks.start_soon(partial(sessions.fork, name="helper"))
        await server.asked.wait()
        with pytest.raises(ValueError, match="'helper'"):
            await sessions.fork(name="helper")
        with sessions.use(sessions.open("helper")):
            tasks.start_soon(caller.ask, "tools/call")
            await anyio.wait_all_tasks_blocked()
        server.go.set()
    assert server.carried("tools/call") == ["id-1", "fork-1"]
    assert (len(server.sent("sessions/fork")), len(server.sent("sessions/create"))) == (1, 1)
    assert {*server.carried("sessions/delete")} == {"fork-1", "id-1"}


async def test_what_the_server_refuses_or_does_not_answer_is_said() -> None:
    """A session that was lost has no forks, and is not asked for them again."""
    lost = error(-32043, sessionId="id-1")
    answers = iter([error(-31045), {"result": {}}, {"result": {"session": {"sessionId": ""}}}, lost])
    async with talk(offering(fork=lambda message: next(answers))) as (sessions, _):
        held = sessions.new()
        with pytest.raises(Refused, match="-31045"):
            await sessions.fork(held)
        for _ in range(2):
            with pytest.raises(NoAnswer, match="no session"):
                await sessions.fork(held)
        assert held.created
        for said in ("sessions/fork", "create another"):
            with pytest.raises(SessionNotFound, match=said):
                await sessions.fork(held)


async def test_a_list_is_read() -> None:
    """Public names and times; it is asked for in the session at hand, if there is one, which is marked then."""
    pages = iter([{**LISTED, "nextCursor": "more"}, {"sessions": []}, {"sessions": [{"ref": 1}]}])
    server = offering(list=lambda message: {"result": next(pages)})
    async with talk(server) as (sessions, caller):
        first = await sessions.list()
        await caller.ask("tools/call")
        assert await sessions.list(first.next_cursor) == SessionPage([])
        with pytest.raises(NoAnswer, match="no list"):
            await sessions.list("more")
    made, seen, ends = (
        datetime(2026, month, day, 12, minute, tzinfo=timezone.utc)
        for month, day, minute in ((7, 28, 0), (7, 28, 1), (8, 4, 0))
    )
    assert first == SessionPage([ListedSession("ses_a", made, seen, ends, current=True)], "more")
    assert asked(server, "sessions/list") == [{}, *[{"cursor": "more"}] * 2]
    assert server.carried("sessions/list") == [None, "id-1", "id-1"]


@pytest.mark.parametrize(
    ("settings", "modern"), [({}, False), ({"fork": False, "list": False}, True), (None, True), ("fork", True)]
)
async def test_what_is_not_offered_is_not_asked_for(settings: Any, modern: bool) -> None:
    server = offering(settings)
    async with talk(server, modern=modern) as (sessions, _):
        held = sessions.new()
        for call in (sessions.fork(held), sessions.list()):
            with pytest.raises(NotOffered):
                await call
    assert not [sent for sent in map(plain, server.received) if sent["method"].startswith("sessions/")]


async def test_a_client_that_was_told_of_the_server_before_asks_what_it_offers() -> None:
    """Before anything was said and after nothing can be asked."""
    server = offering()
    async with talk(server, greet=False) as (sessions, caller):
        with pytest.raises(NoAnswer, match="nothing was sent"):
            await sessions.list()
        await caller.ask("ping")
        assert (await sessions.list()).sessions[0].ref == "ses_a"
    assert len(server.sent("server/discover")) == 1
    for call in (sessions.list(), sessions.fork()):
        with pytest.raises(NoAnswer, match="not connected"):
            await call


# --- the program's trace, to which the client's own requests belong, as the SDK's own do ---------------

TRACE = "0af7651916cd43dd8448eb211c80319c"
CARRIED = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01", "tracestate": "vendor=1", "baggage": "who=ann"}


@contextmanager
def traced() -> Iterator[None]:
    """A span of the program's, with a vendor's state and baggage."""
    span = SpanContext(int(TRACE, 16), 0xB7AD6B7169203331, False, TraceFlags(1), TraceState([("vendor", "1")]))
    token = context.attach(baggage.set_baggage("who", "ann", set_span_in_context(NonRecordingSpan(span))))
    try:
        yield
    finally:
        context.detach(token)


def metas(server: Server) -> dict[str, Any]:
    """The trace context in each request that is ours, by its method."""
    sent = [message for message in map(plain, server.received) if str(message.get("id")).startswith("mcp-sessions-")]
    found = {message["method"]: message.get("params", {}).get("_meta", {}) for message in sent}
    return {method: {name: meta[name] for name in CARRIED if name in meta} for method, meta in found.items()}


@pytest.mark.parametrize("modern", [False, True], ids=["legacy", "modern"])
async def test_requests_of_our_own_carry_the_current_trace_context(modern: bool) -> None:
    server = offering()
    async with talk(server, modern=modern, greet=not modern) as (sessions, caller):
        with traced():
            await caller.ask("tools/call")
            fork = await sessions.fork()
            await sessions.list()
            for session in (fork, sessions.open("")):
                await sessions.delete(session)
    methods = {f"sessions/{name}" for name in ("create", "fork", "list", "delete")}
    assert metas(server) == dict.fromkeys(methods | ({"server/discover"} if modern else set()), CARRIED)


async def test_without_a_span_or_opentelemetry_there_is_no_trace_context(monkeypatch: pytest.MonkeyPatch) -> None:
    server = offering()
    async with talk(server) as (_, caller):
        await caller.ask("tools/call")
    monkeypatch.delitem(sys.modules, "opentelemetry.context")
    with traced():
        async with talk(server) as (_, caller):
            await caller.ask("tools/call")
    assert metas(server) == {"sessions/create": {}, "sessions/delete": {}}
    assert "opentelemetry.context" not in sys.modules
