"""What one middleware records of its requests and its sessions, with tracing and without."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from typing import Any

import anyio
import pytest
from apps import Server, reply, sessions, sweeper_of
from clients import INITIALIZE, Client, Clock
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.trace import NoOpTracerProvider, ProxyTracerProvider, get_current_span
from recorded import ALIAS, messages, named, said
from starlette.types import Receive, Scope, Send
from streaming import Streaming

from mcp_sessions import CreateRefused, Session, current_session, telemetry
from mcp_sessions.telemetry import SessionSpanProcessor
from mcp_sessions.telemetry._core import is_traced


async def fails(session: Session | None, arguments: dict[str, Any]) -> Any:
    raise LookupError("a secret")


# --- messages ------------------------------------------------------------------------------------


async def test_a_call_s_span_names_its_session_by_every_name(spans: list[ReadableSpan]) -> None:
    """Its own two, and the aliases that the processor was given; so does the start of the session."""
    SessionSpanProcessor(aliases=[ALIAS])
    client = Client(sessions(Server()))
    ref = (await client.tool(session=await client.create())).result["content"]
    for name in ("tools/call whoami", "sessions/create", "session start"):
        assert said(named(spans, name), "session.id", "mcp.session.id") == [ref, ref], name
    for name in ("tools/call whoami", "session start", "sessions/create"):
        assert said(named(spans, name), ALIAS) == [ref]


async def test_a_list_names_the_session_that_asks_for_it(spans: list[ReadableSpan]) -> None:
    """Though its handler sees none: its content cannot vary by it."""
    client = Client(sessions(Server()))
    await client.send("tools/list", session=await client.create())
    assert said(named(spans, "tools/list"), "session.id") == said(named(spans, "session start"), "session.id")


@pytest.mark.parametrize("sse", [False, True], ids=["json", "events"])
async def test_a_call_s_outcome_is_on_its_span(sse: bool, spans: list[ReadableSpan]) -> None:
    """By the code of an error, and by the class alone of what the application raises."""
    client = Client(sessions(Server(sse=sse, fails=fails)))
    session = await client.create()
    await client.send("no/such", session=session)
    with pytest.raises(LookupError):
        await client.tool("fails", session=session)
    assert said(messages(spans, "no/such")[0], "rpc.response.status_code") == ["-32601"]
    (raised,) = messages(spans, "tools/call")
    assert said(raised, "error.type") == ["LookupError"]
    assert "a secret" not in raised.to_json()


async def test_a_state_that_cannot_be_kept_is_an_error_of_the_call(spans: list[ReadableSpan]) -> None:
    """The span has the error that the client was sent, and not the server's answer."""

    async def grow(session: Session | None, arguments: dict[str, Any]) -> Any:
        assert session is not None
        session.state["list"] = []
        session.state["list"].append("x" * 10_000)

    client = Client(sessions(Server(grow=grow)))
    assert (await client.tool("grow", session=await client.create())).error["code"] == -32603
    assert said(messages(spans, "tools/call")[0], "error.type") == ["-32603"]


async def test_a_refusal_has_a_span_with_its_reason(spans: list[ReadableSpan]) -> None:
    """Which the client does not get; where the server's own guard answers, it is the guard's status."""
    client = Client(sessions(Server(), require="always"))
    await client.tool()
    (refused,) = messages(spans, "tools/call")
    assert said(refused, "error.type", "mcp_sessions.reason") == ["-31044", "required"]
    assert refused.status.description == "Session required"

    async def guard(scope: Scope, send: Send) -> bool:
        await reply(send, b"{}", status=401)
        return True

    await Client(sessions(Server(guard=guard))).send("sessions/create")
    (guarded,) = messages(spans, "sessions/create")
    assert said(guarded, "error.type", "http.response.status_code") == [None, 401]


async def test_a_stream_that_is_cut_has_the_reason_that_its_session_ended(spans: list[ReadableSpan]) -> None:
    server = Streaming()
    client = Client(sessions(server))
    session = await client.create()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(client.tool, session=session))
        await server.began.wait()
        await client.delete(session)
        server.go.set()
    assert said(messages(spans, "tools/call")[0], "mcp_sessions.reason") == ["ended"]
    assert said(named(spans, "sessions/delete"), "mcp_sessions.reason", "error.type") == [None, None]


async def test_the_first_message_of_a_connection_is_not_a_context_for_later_ones(spans: list[ReadableSpan]) -> None:
    """Servers start the task that serves all later requests in it, and that would keep its span and its session."""
    seen: list[Any] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append((scope["mcp_session"], current_session(), get_current_span().get_span_context().is_valid))
        await reply(send, b'{"jsonrpc":"2.0","id":1,"result":{}}')

    client = Client(sessions(app, transport="off", admission="own"), modern=False)
    await client.send("initialize", INITIALIZE, session=await client.create())
    await client.tool(session=await client.create())
    assert isinstance(seen[0][0], Session)
    assert seen[0][1:] == (None, False)
    assert seen[1][0] is seen[1][1]
    assert seen[1][2]
    assert said(named(spans, "initialize"), "session.id") == [seen[0][0].ref]


async def test_the_span_around_is_enriched_where_that_is_asked_for(spans: list[ReadableSpan]) -> None:
    """No span is added to a message then; a message of no session adds nothing."""
    client = Client(sessions(Server(), spans="enrich"))
    session = await client.create()
    with trace.get_tracer("tests").start_as_current_span("http"):
        ref = (await client.tool(session=session)).result["content"]
    await client.tool()
    assert {span.name for span in spans} == {"session start", "http"}
    assert said(named(spans, "http"), "session.id") == [ref]


async def test_what_is_raised_after_an_answer_is_on_the_span_around_too(spans: list[ReadableSpan]) -> None:
    async def late(scope: Scope, receive: Receive, send: Send) -> None:
        await Server()(scope, receive, send)
        if scope["mcp_session"] is not None:
            raise LookupError

    client = Client(sessions(late, spans="enrich"))
    session = await client.create()
    for _ in range(2):
        with trace.get_tracer("tests").start_as_current_span("http"), pytest.raises(LookupError):
            await client.tool(session=session)
    assert [said(span, "error.type") for span in spans if span.name == "http"] == [["LookupError"]] * 2


# --- sessions ------------------------------------------------------------------------------------


async def test_a_fork_starts_like_any_session(spans: list[ReadableSpan]) -> None:
    """And is named on its request, whose other name stays that of the session that is forked."""

    def refuse(session: Session, params: dict[str, Any], scope: Scope) -> None:
        if "no" in params:
            raise CreateRefused

    client = Client(sessions(Server(), on_create=refuse))
    held = await client.create()
    await client.send("sessions/fork", session=held)
    await client.send("sessions/fork", {"no": 1}, session=held)
    starts = [span for span in spans if span.name == "session start"]
    assert [said(start, "error.type") for start in starts] == [[None], [None], ["CreateRefused"]]
    first, fork = (said(start, "session.id")[0] for start in starts[:2])
    requests = [said(span, "session.id", "mcp.session.id") for span in spans if span.name == "sessions/fork"]
    assert requests == [[first, fork], [first, first]]


async def test_a_session_can_be_one_trace_on_all_workers(spans: list[ReadableSpan]) -> None:
    """Its creation is the root, and everything else stands below its start."""
    first, second = (Client(sessions(Server(), trace="session")) for _ in range(2))
    held = await first.create()
    for client in (first, second):
        await client.tool(session=held)
    await second.delete(held)
    start = named(spans, "session start")
    assert start.context is not None
    assert start.parent == named(spans, "sessions/create").context
    assert [link.context for link in named(spans, "session end").links] == [named(spans, "sessions/delete").context]
    below = [span.name for span in spans if span.parent is not None and span.parent.span_id == start.context.span_id]
    assert below == ["tools/call whoami", "tools/call whoami", "session end", "sessions/delete"]
    assert {span.context.trace_id for span in spans if span.context} == {start.context.trace_id}


async def test_the_end_of_a_session_that_expired_leads_back_too(spans: list[ReadableSpan]) -> None:
    """Its token is not sent then; its record knows where it began."""
    clock = Clock()
    middleware = sessions(Server(), clock=clock, lifetime=60, tracked=True)
    await Client(middleware).create()
    clock.now += 60
    await sweeper_of(middleware).sweep()
    start, end = (named(spans, name) for name in ("session start", "session end"))
    assert start.context is not None
    assert [link.context.span_id for link in end.links] == [start.context.span_id]
    assert said(end, "mcp_sessions.reason", "mcp_sessions.duration") == ["expired", 60]


async def test_a_session_knows_where_it_started(spans: list[ReadableSpan]) -> None:
    """For an application's own spans to link to, such as those of a job that outlives the request."""
    traceparents: list[str | None] = []

    async def look(session: Session | None, arguments: dict[str, Any]) -> Any:
        assert session is not None
        traceparents.append(session.traceparent)

    client = Client(sessions(Server(look=look)))
    await client.tool("look", session=await client.create())
    context = named(spans, "session start").context
    assert context is not None
    assert traceparents == [f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"]


async def test_the_start_says_where_all_conversations_of_a_principal_share_it(spans: list[ReadableSpan]) -> None:
    client = Client(sessions(Server(), principal=lambda scope: "ann", tracked=True, **{"transport.principal": True}))
    await client.tool()
    assert said(named(spans, "session start"), "mcp_sessions.kind") == ["principal"]


# --- without tracing -----------------------------------------------------------------------------


async def test_a_provider_may_come_later(spans: list[ReadableSpan], monkeypatch: pytest.MonkeyPatch) -> None:
    """From its coming on there are spans; a session that is older has no start."""
    provider = trace.get_tracer_provider()
    assert isinstance(provider, TracerProvider)
    client = Client(sessions(Server()))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    session = await client.create()
    await client.tool(session=session)
    assert spans == []
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    await client.tool(session=session)
    await client.delete(session)
    assert [span.name for span in spans] == ["tools/call whoami", "session end", "sessions/delete"]
    assert not any(span.links for span in spans)


async def test_a_session_that_is_refused_without_tracing_leaves_no_span(
    spans: list[ReadableSpan], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(session: Session, params: dict[str, Any], scope: Scope) -> None:
        raise CreateRefused("not you")

    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    await Client(sessions(Server(), on_create=refuse)).send("sessions/create")
    assert spans == []


OfAnotherName = type("ProxyTracerProvider", (trace.TracerProvider,), {"get_tracer": TracerProvider.get_tracer})
PROVIDERS = {NoOpTracerProvider: False, ProxyTracerProvider: False, TracerProvider: True, OfAnotherName: True}
"""Logfire calls its own by the name of a stand-in, and that one takes spans."""


@pytest.mark.parametrize(("kind", "takes"), PROVIDERS.items(), ids=lambda of: getattr(of, "__name__", str(of)))
def test_the_api_s_stand_ins_keep_nothing(
    kind: type[trace.TracerProvider], takes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    assert not is_traced()
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", kind())
    assert is_traced() is takes


def test_an_untraced_middleware_imports_no_opentelemetry() -> None:
    source = """
import asyncio, sys
sys.path.insert(0, "tests/support")
from apps import Server, sessions
from clients import INITIALIZE, Client

async def main():
    client = Client(sessions(Server()))
    await client.tool(session=await client.create())

asyncio.run(main())
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
"""
    subprocess.run([sys.executable, "-c", source], check=True)


def test_a_name_that_telemetry_does_not_have_is_missing() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Basket'"):
        telemetry.Basket  # noqa: B018  # asking is enough
