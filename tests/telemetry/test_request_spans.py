"""A message has one span, where the wrapped server makes none; it hangs where it belongs, and nothing of ours below."""

import sqlite3
from contextlib import closing, nullcontext
from pathlib import Path
from time import time
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import postgres_servers
import psycopg
import pytest
from apps import Server, reply, sessions
from clients import INITIALIZE, START, Client, Header
from opentelemetry import baggage, context, trace
from opentelemetry.instrumentation import asgi
from opentelemetry.instrumentation.sqlite3 import SQLite3Instrumentor
from opentelemetry.instrumentation.utils import is_instrumentation_enabled
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.sampling import DEFAULT_OFF, Sampler
from opentelemetry.trace import NoOpTracerProvider, SpanKind, StatusCode, get_current_span, use_span
from recorded import ALIAS, named, said
from starlette.types import Receive, Scope, Send

from mcp_sessions import Session, __version__
from mcp_sessions.dialects import SEP1364Create
from mcp_sessions.stores._postgres import PostgresStore
from mcp_sessions.stores._sqlite import SQLiteStore
from mcp_sessions.telemetry import SessionSampler, SessionSpanProcessor

NAMES = ("session.id", "mcp.session.id")
CALLER, HTTP = 0xCA, 0x8A
META = {"traceparent": f"00-{CALLER:032x}-{CALLER:016x}-01", "tracestate": "a=b"}
HEADER = (b"traceparent", b"00-%032x-%016x-01" % (HTTP, HTTP))
CLIENT = {"io.modelcontextprotocol/clientInfo": {"name": "wire", "version": "1"}}
CHAT = {"session.id": "chat"}


class OpenTelemetryMiddleware:
    """Named as SDK 2.x's own."""


class StreamableHTTPSessionManager(Server):
    """Named as the SDK's, with a server that makes spans of its own."""

    app = SimpleNamespace(middleware=[OpenTelemetryMiddleware()])


def around(**attributes: str) -> Any:
    """The span of an HTTP request."""
    return trace.get_tracer("tests").start_as_current_span("http", kind=SpanKind.SERVER, attributes=attributes)


# --- what it says ----------------------------------------------------------------------------------


async def test_a_message_is_a_server_span_by_the_conventions(spans: list[ReadableSpan]) -> None:
    """With its client's own name, and its session by every name, as the spans of the session's start."""
    SessionSpanProcessor(aliases=[ALIAS])
    client = Client(sessions(Server()), http_version="1.1")
    held = (await client.send("sessions/create", {"_meta": CLIENT})).result["session"]
    await client.send("tools/list", session=held)
    ref = (await client.tool(session=held)).result["content"]
    span, start = named(spans, "tools/call whoami"), named(spans, "session start")
    assert (span.kind, span.status.status_code) == (SpanKind.SERVER, StatusCode.UNSET)
    made = span.instrumentation_scope
    assert made is not None
    assert (made.version, made.schema_url) == (__version__, "https://opentelemetry.io/schemas/1.44.0")
    both = {**dict.fromkeys((*NAMES, ALIAS), ref), "mcp_sessions.client": "wire 1"}
    assert span.attributes == {
        **both,
        "mcp.method.name": "tools/call",
        "mcp.protocol.version": "2026-07-28",
        "jsonrpc.request.id": "1",
        "gen_ai.tool.name": "whoami",
        "gen_ai.operation.name": "execute_tool",
        "network.transport": "tcp",
        "network.protocol.name": "http",
        "network.protocol.version": "1.1",
    }
    assert start.attributes == {**both, "mcp_sessions.expires_at": START + 7 * 86_400}
    for name in ("tools/list", "sessions/create"):
        assert said(named(spans, name), *both) == [*both.values()]


FOUND = b'{"result":{}}'
UNKNOWN_TOOL = b'{"result":{"isError":true,"text":"Unknown tool"}}'


@pytest.mark.parametrize(
    ("method", "name", "answer", "first", "last"),
    [
        ("tools/call", "new", FOUND, "tools/call _OTHER", "tools/call new"),
        ("tools/call", "broken", b'{"result":{"isError":true}}', "tools/call _OTHER", "tools/call broken"),
        ("tools/call", "x" * 600, b'{"error":{"code":-32602}}', "tools/call _OTHER", "tools/call _OTHER"),
        ("tools/call", "no", UNKNOWN_TOOL, "tools/call _OTHER", "tools/call _OTHER"),
        ("tools/call", "listed", FOUND, "tools/call listed", "tools/call listed"),
        ("prompts/get", "p", FOUND, "prompts/get _OTHER", "prompts/get p"),
        ("no/such", "n", b'{"error":{"code":-32601}}', "_OTHER", "_OTHER"),
        ("resources/read", "n", FOUND, "resources/read", "resources/read"),
    ],
)
async def test_names_are_those_that_exist(
    *, method: str, name: str, answer: bytes, first: str, last: str, spans: list[ReadableSpan]
) -> None:
    """As the answers show. So is the span of the HTTP request named."""
    answers, seen = iter([b'{"result":{"tools":[{"name":"listed"}]}}', answer]), list[Any]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(get_current_span())
        seen.append(seen[-1].name)
        await reply(send, next(answers))

    client = Client(sessions(app, spans="message"))
    await client.send("tools/list")
    with around(**{"http.method": "POST"}):
        await client.send(method, {"name": name})
    assert seen[1::2] == ["tools/list", first]
    assert [span.name for span in spans[1:]] == [last, f"POST {last}"]


# --- parents and links -----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["request", "session"])
@pytest.mark.parametrize(
    ("meta", "headers", "is_within", "caller", "transport"),
    [
        ({}, [], False, None, None),
        (META, [], False, "meta", None),
        ({}, [HEADER], False, None, "header"),
        (META, [HEADER], False, "meta", "header"),
        (META, [HEADER], True, "meta", "http"),  # the span around, which the header led to
        *(({"traceparent": odd}, [], True, None, "http") for odd in ("odd", "\ud800")),
        *((meta, [], True, None, "http") for meta in ({}, {"baggage": "a=b"})),
    ],
)
async def test_of_the_contexts_of_a_message_one_is_the_parent_and_the_others_are_linked(
    *,
    meta: dict[str, Any],
    headers: list[Header],
    is_within: bool,
    caller: str | None,
    transport: str | None,
    mode: str,
    spans: list[ReadableSpan],
) -> None:
    """The session's start is linked, or is the parent where a session is one trace; what a tool starts hangs below."""

    async def look(session: Session | None, arguments: dict[str, Any]) -> None:
        trace.get_tracer("tests").start_span("inner").end()

    client = Client(sessions(Server(look=look), trace=mode, spans="message"))
    held = await client.create()
    with around() if is_within else nullcontext():
        before = context.get_current()
        await client.send("tools/call", {"name": "look", "_meta": meta}, *headers, session=held)
        assert context.get_current() == before
    call, names = named(spans, "tools/call look"), {CALLER: "meta", HTTP: "header"}
    outer = [span for span in spans if span.name in {"http", "session start"}]
    names |= {span.context.trace_id: span.name for span in outer if span.context}
    links = {str((link.attributes or {})["mcp_sessions.link"]): names[link.context.trace_id] for link in call.links}
    parent = "session start" if mode == "session" else caller or transport
    linked = {"caller": caller, "transport": transport}
    if mode == "request":
        linked = {"start": "session start", "transport": caller and transport}
    assert (call.parent and names[call.parent.trace_id]) == parent
    assert links == {role: name for role, name in linked.items() if name}
    assert call.context is not None
    assert dict(call.context.trace_state) == ({"a": "b"} if parent == "meta" else {})
    assert named(spans, "inner").parent == call.context


# --- a session beside a client's own ---------------------------------------------------------------


@pytest.mark.parametrize("server", [Server, StreamableHTTPSessionManager], ids=["ours", "native"])
async def test_a_chat_that_a_message_names_keeps_its_name(server: Any, spans: list[ReadableSpan]) -> None:
    """A server that makes spans finds the baggage too, below what is around: it takes the parent from the message."""
    seen: list[Any] = []

    async def look(session: Session | None, arguments: dict[str, Any]) -> None:
        seen.extend([baggage.get_baggage("session.id"), get_current_span()])

    client = Client(sessions(server(look=look), spans="message"))
    held = await client.create()
    with around() as http:
        meta = {**META, "baggage": "session.id=chat"}
        await client.send("tools/call", {"name": "look", "_meta": meta}, session=held)
        assert baggage.get_baggage("session.id") is None
    assert (seen[0], seen[1] is http) == ("chat", server is not Server)
    assert said(spans[-1], *NAMES) == [None, said(named(spans, "session start"), "session.id")[0]]
    assert said(spans[-2], *NAMES) == said(spans[-1], *NAMES) or server is not Server


@pytest.mark.parametrize("given", [{}, CHAT])
async def test_a_chat_that_names_the_span_around_a_creation_keeps_its_name(
    given: dict[str, str], spans: list[ReadableSpan]
) -> None:
    """The session is known only once it is made; its own spans, too, then leave the trace to the chat."""
    client = Client(sessions(Server(), spans="message"))
    with around(**given):
        held = await client.create()
    ref = (await client.tool(session=held)).result["content"]
    for name in ("session start", "sessions/create"):
        assert said(named(spans, name), *NAMES) == [None if given else ref, ref]


@pytest.mark.parametrize("mode", ["request", "session"])
async def test_a_chat_that_names_the_trace_of_a_start_keeps_its_name(mode: str, spans: list[ReadableSpan]) -> None:
    """Tools give a trace to the first session in it; one whose root is the start of ours is ours."""
    token = context.attach(baggage.set_baggage("session.id", "a chat"))
    await Client(sessions(StreamableHTTPSessionManager(), trace=mode), modern=False).send("initialize", INITIALIZE)
    context.detach(token)
    chosen, ours = said(named(spans, "session start"), *NAMES)
    assert chosen == (None if mode == "request" else ours)
    assert ours.startswith("ses_")


# --- whether there is one --------------------------------------------------------------------------


class Idle(NoOpTracerProvider):
    """One that is not the API's own, and makes no spans all the same."""


async def traceparent(session: Session | None, arguments: dict[str, Any]) -> list[Any]:
    return [get_current_span().is_recording(), session and session.traceparent]


@pytest.mark.parametrize(
    ("sampler", "recorded", "flags"),
    [
        (DEFAULT_OFF, [False, False], {"00", "02"}),
        (SessionSampler(0), [False, True], {"00", "02"}),
        (None, [False] * 2, {""}),
    ],
    ids=["not sampled", "by session", "no spans"],
)
async def test_a_span_that_is_not_recorded_hides_nothing(
    sampler: Sampler | None, recorded: list[bool], flags: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sampler knows the session before the span does. Its decision is current and in the token, for what is below.

    Without spans the token carries nothing, not even the trace context of a caller: that one is not the session's.
    """
    provider: Any = Idle() if sampler is None else TracerProvider(sampler=sampler, shutdown_on_exit=False)
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    client = Client(sessions(Server(look=traceparent)))
    remote = trace.NonRecordingSpan(trace.SpanContext(1, 1, is_remote=True))
    with use_span(remote) if sampler is None else nullcontext():
        held = await client.create()
        seen = [(await client.tool("look", session=session)).result["content"] for session in (held, None)]
        await client.delete(held)
    assert [is_recording for is_recording, _ in seen] == recorded
    assert (seen[0][1] or "")[-2:] in flags
    assert not get_current_span().get_span_context().is_valid


@pytest.mark.parametrize("server", [Server, StreamableHTTPSessionManager], ids=["ours", "native"])
@pytest.mark.parametrize("option", ["auto", "enrich", "off"])
async def test_the_option_chooses_whether_there_is_a_span(option: str, server: Any, spans: list[ReadableSpan]) -> None:
    """A server that makes its own never sees what we answer ourselves, so that has one of ours."""
    client = Client(sessions(server(), spans=option))
    await client.tool()
    await client.send("sessions/delete")
    expected = {"auto": ["tools/call whoami", "sessions/delete"]}.get(option, [])
    assert [span.name for span in spans] == expected[server is not Server :]
    assert {span.kind for span in spans} <= {SpanKind.SERVER}


async def test_only_a_span_that_is_named_after_the_message_is_taken_for_its_own(spans: list[ReadableSpan]) -> None:
    """FastMCP 3 asks itself for the list of tools below the first call."""
    tracer = trace.get_tracer("mcp-python-sdk")

    async def look(session: Session | None, arguments: dict[str, Any]) -> None:
        for name in ("tools/list", "tools/call look", "tools/call look again"):
            tracer.start_span(name, kind=SpanKind.SERVER).end()

    await Client(sessions(StreamableHTTPSessionManager(look=look))).tool("look")
    assert {span.name: said(span, "mcp.method.name")[0] for span in spans} == {
        "tools/list": None,
        "tools/call look": "tools/call",
        "tools/call look again": None,
    }


@pytest.mark.usefixtures("spans")
async def test_a_session_of_a_cookie_keeps_the_trace_of_its_start() -> None:
    """It begins with its first use, so its token cannot have it: it stands in the store, before the state."""
    client = Client(sessions(Server(look=traceparent)))
    cookie = (await client.send("server/discover")).cookie
    first, second = [(await client.tool("look", cookie)).result["content"][1] for _ in range(2)]
    assert first is not None
    assert first == second


# --- what the middleware does for itself leaves none -------------------------------------------------

OURS = {"sessions/create", "sessions/delete", "session start", "session end", "tools/call whoami"}


async def lives(store: Any) -> None:
    """Create, use and delete tracked sessions, with all that runs beside them."""
    app = sessions(Server(), store=store, tracked=True, clock=time)
    client = Client(app)
    async with app.services.around(lambda _: nullcontext(), None):
        held = await client.create()
        await client.tool(session=held)
        await client.delete(held)
    await store.close()


async def test_a_sqlite_store_leaves_no_spans(tmp_path: Path, spans: list[ReadableSpan]) -> None:
    """Though a query of the application's own, beside it, does."""
    SQLite3Instrumentor().instrument()
    try:
        await lives(SQLiteStore(tmp_path / "sessions.db"))
        with closing(sqlite3.connect(":memory:")) as own:
            own.cursor().execute("SELECT 1")
    finally:
        SQLite3Instrumentor().uninstrument()
    assert {span.name for span in spans} == {*OURS, "SELECT"}


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # the store refuses trio
async def test_a_postgresql_store_lets_no_instrumentation_see_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its calls nor the tasks that connect and sweep."""
    url, seen = postgres_servers.shared().url, list[bool]()
    execute = psycopg.AsyncConnection.execute

    async def observed(*args: Any, **given: Any) -> Any:
        seen.append(is_instrumentation_enabled())
        return await execute(*args, **given)

    monkeypatch.setattr(psycopg.AsyncConnection, "execute", observed)
    await lives(PostgresStore(url, schema=f"s{uuid4().hex}", durability="ignore", timeout=10))
    assert {*seen} == {False}


@pytest.mark.parametrize("mode", ["auto", "off"])
async def test_http_instrumentation_within_sees_no_question(mode: str, spans: list[ReadableSpan]) -> None:
    """Not before a creation, a refusal or an end; it comes with a context that is not sampled, not the caller's."""
    inner = Server()
    client = Client(sessions(asgi.OpenTelemetryMiddleware(inner), spans=mode, dialects=[SEP1364Create()]))
    traced = (b"traceparent", b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01")
    await client.send("sessions/create", None, traced)
    await client.tool("whoami", traced, session={"sessionId": "x"})
    assert {span.name for span in spans} <= {"sessions/create", "session start", "tools/call _OTHER"}
    sent = [dict(seen.scope["headers"]).get(b"traceparent", b"-00") for seen in inner.seen]
    assert [header[-3:] for header in sent if header != traced[1]] == [b"-00"] * 2
