"""Sessions on spans: their start and end, what hooks do, who sends requests, the server's own, and without tracing."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from apps import Server, sessions, sweeper_of
from clients import INITIALIZE, Client, Clock, by, call, http, user_of
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.trace import NoOpTracerProvider, ProxyTracerProvider, SpanKind
from recorded import messages, named, said
from starlette.types import Receive, Scope, Send
from stateful import Stateful

from mcp_sessions import CreateRefused, Session
from mcp_sessions._session.claims import Principal
from mcp_sessions.telemetry import _attributes
from mcp_sessions.telemetry._attributes import server_ref
from mcp_sessions.telemetry._context import traceparent_of
from mcp_sessions.telemetry._core import is_traced

NAMES = ("session.id", "mcp.session.id")
HEADER = b"mcp-session-id"


def refuse(session: Session, params: dict[str, Any], scope: Scope) -> None:
    if "no" in params:
        raise CreateRefused


async def test_a_fork_starts_like_any_session(spans: list[ReadableSpan]) -> None:
    """And is named on its request, whose other name stays that of the session that is forked."""
    client = Client(sessions(Server(), on_create=refuse))
    held = await client.create()
    await client.send("sessions/fork", session=held)
    await client.send("sessions/fork", {"no": 1}, session=held)
    starts = [span for span in spans if span.name == "session start"]
    assert [said(start, "error.type") for start in starts] == [[None], [None], ["CreateRefused"]]
    first, fork = (said(start, "session.id")[0] for start in starts[:2])
    assert [said(span, *NAMES) for span in spans if span.name == "sessions/fork"] == [[first, fork], [first, first]]


async def test_a_session_can_be_one_trace_on_all_workers(spans: list[ReadableSpan]) -> None:
    """Its creation is the root, and everything else stands below its start, which the application can link to."""

    async def look(session: Session | None, arguments: dict[str, Any]) -> Any:
        return session and session.traceparent

    first, second = (Client(sessions(Server(look=look), trace="session")) for _ in range(2))
    held = await first.create()
    traceparents = [(await client.tool("look", session=held)).result["content"] for client in (first, second)]
    await second.delete(held)
    start = named(spans, "session start")
    assert start.context is not None
    assert traceparents == [traceparent_of(start.context)] * 2
    assert start.parent == named(spans, "sessions/create").context
    assert [link.context for link in named(spans, "session end").links] == [named(spans, "sessions/delete").context]
    below = [span.name for span in spans if span.parent is not None and span.parent.span_id == start.context.span_id]
    assert below == ["tools/call look", "tools/call look", "session end", "sessions/delete"]
    assert {span.context.trace_id for span in spans if span.context} == {start.context.trace_id}


async def test_the_end_of_a_session_that_expired_leads_back_too(spans: list[ReadableSpan]) -> None:
    """Its token is not sent then; its record knows where it began. A start says where conversations share a session."""
    clock = Clock()
    options = {"principal": lambda scope: "ann", "transport.per_user": True, "transport_lifetime": 60}
    middleware = sessions(Server(), clock=clock, tracked=True, **options)
    await Client(middleware).tool()
    clock.now += 60
    await sweeper_of(middleware).sweep()
    start, end = (named(spans, name) for name in ("session start", "session end"))
    assert start.context is not None
    assert said(start, "mcp_sessions.kind") == ["user"]
    assert [link.context.span_id for link in end.links] == [start.context.span_id]
    assert said(end, "mcp_sessions.reason", "mcp_sessions.duration") == ["expired", 60]


class Listing(Server):
    """A server that lists its tools."""

    async def _answer(self, scope: Scope, message: dict[str, Any]) -> dict[str, Any]:
        if message["method"] == "tools/list":
            return {"result": {"tools": [{"name": name, "inputSchema": {}} for name in ("look", "idle")]}}
        return await super()._answer(scope, message)


async def test_session_that_no_tool_used_is_in_no_span(spans: list[ReadableSpan]) -> None:
    """One that the model would carry begins when a tool uses it, and its request is named then."""

    async def look(session: Session | None, arguments: dict[str, Any]) -> Any:
        assert session is not None
        session.state["n"] = 1
        return []

    async def idle(session: Session | None, arguments: dict[str, Any]) -> Any:
        return []

    middleware = sessions(Listing(look=look, idle=idle), **{"transport.argument": "session", "transport.header": False})
    client = Client(middleware, modern=False)
    await client.tool("idle")
    assert [span for span in spans if said(span, "session.id") != [None]] == []
    await client.tool("look")
    start, call = named(spans, "session start"), named(spans, "tools/call look")
    assert said(start, "mcp_sessions.kind") == ["argument"]
    assert said(start, "session.id") == said(call, "session.id") != [None]


async def test_what_hooks_start_belongs_to_their_session(spans: list[ReadableSpan]) -> None:
    """Also where another session's request ends it, or none does."""
    clock = Clock()

    def work(session: object, *_: object) -> None:
        trace.get_tracer("tests").start_span("work").end()

    async def sweep(session: Session | None, arguments: dict[str, Any]) -> None:
        clock.now += 60
        await sweeper_of(app).sweep()

    options = {"tracked": True, "clock": clock, "idle_timeout": 50, "lifetime": 1000}
    app = sessions(Server(sweep=sweep), on_create=work, on_end=work, **options)
    client = Client(app)
    await client.create()
    clock.now += 40
    await client.tool("sweep", session=await client.create())
    began, works = ([span for span in spans if span.name == name] for name in ("session start", "work"))
    starts, worked = ([said(span, *NAMES) for span in found] for found in (began, works))
    assert [span.parent for span in works[:2]] == [span.context for span in began]
    assert worked[:2] == starts
    assert sorted(worked[2:]) == sorted(starts)  # both are idle, and end side by side


# --- who ---------------------------------------------------------------------------------------------


def user(principal: Principal) -> str | None:
    if principal.subject == "broken":
        raise LookupError(principal.subject)
    return None if principal.subject == "shy" else principal.subject


META = {"_meta": {"io.modelcontextprotocol/clientInfo": {"name": "wire", "version": "1"}}}
WHO = ("user.id", "client.address", "mcp_sessions.client")


async def test_each_span_of_a_session_says_who_sends_the_request(
    spans: list[ReadableSpan], caplog: pytest.LogCaptureFixture
) -> None:
    """The user only where the application names one; by default nothing of it is written."""
    app, network = sessions(Server(), principal=user_of, user=user), ("192.0.2.7", 4242)
    client = Client(app, client=network)
    held = (await client.send("sessions/create", META, by("ann"))).result["session"]
    await client.tool("whoami", by("ann"), session=held)
    await client.send("sessions/delete", None, by("ann"), session=held)
    names = ("session start", "sessions/create", "tools/call whoami", "session end", "sessions/delete")
    assert {span.name: said(span, *WHO) for span in spans} == {name: ["ann", "192.0.2.7", "wire 1"] for name in names}
    await client.send("tools/list", META)
    for name in ("shy", "broken"):
        await Client(app).tool("whoami", by(name))
    await Client(sessions(Server(), principal=user_of), client=network).tool("whoami", by("ann"))
    assert [said(span, *WHO) for span in spans[5:]] == [[None, "192.0.2.7", "wire 1"], *[[None] * 3] * 3]
    assert "cannot add the user to a span: LookupError" in caplog.text


@pytest.mark.parametrize("returned", ["coroutine", 7])
async def test_value_that_is_no_text_is_no_user(
    returned: Any, spans: list[ReadableSpan], caplog: pytest.LogCaptureFixture
) -> None:
    """Above all not the text of a coroutine that nothing awaits, which another one may have again."""

    async def later() -> str:
        return "ann"

    app = sessions(Server(), principal=user_of, user=lambda principal: later() if returned == "coroutine" else returned)
    await Client(app).tool("whoami", by("ann"))
    assert [said(span, "user.id") for span in spans] == [[None]]
    assert "cannot add the user to a span: user= returned a value of type" in caplog.text


# --- sessions of the wrapped server ------------------------------------------------------------------


async def test_a_session_of_the_server_is_named_by_its_hash(spans: list[ReadableSpan]) -> None:
    """Without the bridge and with unchanged clients: from its `initialize` on, and labelled as the server's."""
    inner = Stateful()

    async def server(scope: Scope, receive: Receive, send: Send) -> None:
        trace.get_tracer("tests").start_span("work").end()
        await inner(scope, receive, send)

    client = Client(sessions(server), modern=False)
    own = (await client.send("initialize", INITIALIZE)).headers[b"Mcp-Session-Id"]
    await client.tool("whoami", (HEADER, own))
    ref = server_ref(own.decode())
    assert ref.startswith("srv_")
    for name in ("initialize", "tools/call whoami"):
        assert said(named(spans, name), *NAMES, "mcp_sessions.source") == [ref, ref, "server"]
    assert said([span for span in spans if span.name == "work"][-1], *NAMES) == [ref, ref]
    assert not any(own.decode() in span.to_json() for span in spans)
    with trace.get_tracer("tests").start_as_current_span("http", kind=SpanKind.SERVER):
        await call(client.app, http("DELETE", headers=[(HEADER, own)]))
    assert said(named(spans, "http"), *NAMES) == [ref, ref]


@pytest.mark.parametrize("server", [Stateful, Server])
async def test_an_id_that_the_server_has_not_named_is_not_a_session(spans: list[ReadableSpan], server: Any) -> None:
    """Whether the server refuses it or, stateless, looks at none; also in what we refuse, and without a message."""
    client = Client(sessions(server()), modern=False)
    await client.tool("whoami", (HEADER, b"made-up"))
    await client.send("sessions/delete", {}, (HEADER, b"made-up"))
    with trace.get_tracer("tests").start_as_current_span("http", kind=SpanKind.SERVER):
        await call(client.app, http("DELETE", headers=[(HEADER, b"made-up")]))
    assert [said(span, *NAMES) for span in spans] == [[None, None]] * 3


async def test_the_sessions_of_the_server_that_are_known_are_bounded(
    spans: list[ReadableSpan], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those used last are."""
    monkeypatch.setattr(_attributes, "_MAX_SESSIONS", 2)
    client = Client(sessions(Stateful()), modern=False)
    first, second = [(await client.send("initialize")).headers[b"Mcp-Session-Id"] for _ in range(2)]
    await client.tool("whoami", (HEADER, first))
    await client.send("initialize")
    for own in (first, second):
        await client.tool("whoami", (HEADER, own))
    assert [said(span, "session.id")[0] is not None for span in messages(spans, "tools/call")] == [True, True, False]


# --- without tracing -----------------------------------------------------------------------------


async def test_a_provider_may_come_later(spans: list[ReadableSpan], monkeypatch: pytest.MonkeyPatch) -> None:
    """From its coming on there are spans; a session that is older has no start."""
    provider = trace.get_tracer_provider()
    client = Client(sessions(Server(), on_create=refuse))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    session = await client.create()
    await client.send("sessions/create", {"no": 1})
    await client.tool(session=session)
    assert spans == []
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    await client.tool(session=session)
    await client.delete(session)
    assert [span.name for span in spans] == ["tools/call whoami", "session end", "sessions/delete"]
    assert not any(span.links for span in spans)


OfAnotherName = type("ProxyTracerProvider", (trace.TracerProvider,), {"get_tracer": TracerProvider.get_tracer})


def test_the_api_s_stand_ins_keep_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logfire calls its own provider by the name of a stand-in, and that one takes spans."""
    for provider in (None, NoOpTracerProvider(), ProxyTracerProvider(), TracerProvider(), OfAnotherName()):
        monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
        assert is_traced() is (type(provider) in {TracerProvider, OfAnotherName}), provider


def test_an_untraced_middleware_and_its_store_import_no_opentelemetry(tmp_path: Path) -> None:
    source = """
import asyncio, sys
sys.path.insert(0, "tests/support")
from apps import Server, sessions
from clients import Client

async def main():
    client = Client(sessions(Server(), store="sqlite:" + sys.argv[1]))
    await client.tool(session=await client.create())

asyncio.run(main())
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
"""
    subprocess.run([sys.executable, "-c", source, tmp_path / "sessions.db"], check=True)
