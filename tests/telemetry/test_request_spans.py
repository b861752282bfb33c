"""A message has one span, where the wrapped server makes none, and it hangs where it belongs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry import baggage, context
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.sampling import DEFAULT_OFF
from opentelemetry.trace import NoOpTracerProvider, SpanKind, StatusCode, get_current_span
from recorded import Recorder, telemetry_on

from mcp_sessions._protocol.headers import RequestHeaders
from mcp_sessions._protocol.jsonrpc import Message, parse
from mcp_sessions._session.claims import Claims
from mcp_sessions.telemetry._core import Spans
from mcp_sessions.telemetry._frameworks import SCOPE_KEY
from mcp_sessions.telemetry._outcome import Outcome, RequestTelemetry
from mcp_sessions.telemetry._processor import SessionSampler, SessionSpanProcessor

CALLER = f"00-{0xCA:032x}-{0xC1:016x}-01"
START = f"00-{0x5E:032x}-{0x51:016x}-01"


def session(jti: str = "a", trace: str | None = START, client: str | None = "wire 1.0") -> Claims:
    return Claims(
        kind="session",
        issuer="mcp-sessions",
        audience="mcp-sessions",
        jti=jti,
        issued_at=0,
        expires_at=99,
        trace=trace,
        client=client,
    )


SESSION = session()
LABELS = {"mcp.method.name": "tools/call", "gen_ai.tool.name": "add"}
TURN = {"input.value": "tools/call add", "output.value": "success"}  # as Phoenix and MLflow show it
NAMED = {"session.id": SESSION.ref, "mcp.session.id": SESSION.ref}


def message(method: str = "tools/call", meta: dict[str, Any] | None = None, name: str = "add", **more: Any) -> Message:
    envelope = {"jsonrpc": "2.0", "id": 7, "method": method, "params": {"name": name, "_meta": meta}, **more}
    return parse(json.dumps(envelope).encode())


class OpenTelemetryMiddleware:
    """Named as SDK 2.x's own."""


class StreamableHTTPSessionManager:
    """Named as the SDK's, with a server that makes spans of its own."""

    app = SimpleNamespace(middleware=[OpenTelemetryMiddleware()])


class Traced:
    """A provider, the spans that ended in it, and what makes spans there."""

    def __init__(self, spans: Spans = "auto", *, is_native: bool = False, **options: Any) -> None:
        self.provider = TracerProvider(shutdown_on_exit=False)
        self._recorder = Recorder()
        self.provider.add_span_processor(SessionSpanProcessor())
        self.provider.add_span_processor(self._recorder)
        self.tracer = self.provider.get_tracer("tests")
        parts = [StreamableHTTPSessionManager()] if is_native else []
        self.telemetry = telemetry_on(self.provider, parts, spans=spans, **options)

    def begin(
        self, sent: Message | None = None, session: Claims | None = SESSION, *, version: str = "2025-11-25", **how: Any
    ) -> RequestTelemetry | None:
        headers = RequestHeaders([(b"mcp-protocol-version", version.encode())])
        return self.telemetry.begin(sent or message(), headers, how.pop("scope", {}), session, **how)

    def begun(self, sent: Message | None = None, session: Claims | None = SESSION, **how: Any) -> RequestTelemetry:
        request = self.begin(sent, session, **how)
        assert request is not None
        return request

    @contextmanager
    def recording(self) -> Iterator[list[ReadableSpan]]:
        with self._recorder.recording() as spans:
            yield spans
        self.provider.shutdown()


def links(span: ReadableSpan) -> set[int]:
    return {link.context.span_id for link in span.links}


# --- attributes ----------------------------------------------------------------------------------


def test_a_message_is_a_server_span_by_the_conventions() -> None:
    """Its name, its kind, its attributes, its session and its client's own name."""
    traced = Traced()
    with traced.recording() as spans:
        traced.begun().end()
    (span,) = spans
    assert (span.name, span.kind, span.status.status_code) == ("tools/call add", SpanKind.SERVER, StatusCode.UNSET)
    assert span.attributes == {
        **NAMED,
        "mcp.method.name": "tools/call",
        "mcp.protocol.version": "2025-11-25",
        "jsonrpc.request.id": "7",
        "gen_ai.tool.name": "add",
        "gen_ai.operation.name": "execute_tool",
        "network.transport": "tcp",
        "network.protocol.name": "http",
        "mcp_sessions.client": "wire 1.0",
        "input.value": "tools/call add",
        "output.value": "success",
    }


# What a message is called at first, and once its answer has come.
NAMES: list[tuple[Message, bytes, str, str]] = [
    (message(name="new"), b'{"result":{}}', "tools/call _OTHER", "tools/call new"),
    (message(name="broken"), b'{"result":{"isError":true}}', "tools/call _OTHER", "tools/call broken"),
    (message(name="x" * 600), b'{"error":{"code":-32602}}', "tools/call _OTHER", "tools/call _OTHER"),
    (
        message(name="no"),
        b'{"result":{"isError":true,"text":"Unknown tool"}}',
        "tools/call _OTHER",
        "tools/call _OTHER",
    ),
    (message("prompts/get", name="p"), b'{"result":{}}', "prompts/get _OTHER", "prompts/get p"),
    (message("no/such"), b'{"error":{"code":-32601}}', "_OTHER", "_OTHER"),
    (message("resources/read"), b'{"result":{}}', "resources/read", "resources/read"),
]


@pytest.mark.parametrize(("sent", "answer", "first", "last"), NAMES, ids=str)
def test_names_are_those_that_exist(sent: Message, answer: bytes, first: str, last: str) -> None:
    """As the answers show; what was sent is an attribute. So is the span of the HTTP request named."""
    traced = Traced()
    around = traced.tracer.start_as_current_span("http", kind=SpanKind.SERVER, attributes={"http.method": "POST"})
    with traced.recording() as spans, around as http:
        request = traced.begun(sent)
        assert (request.span.name, http.name) == (first, f"POST {first}")  # type: ignore[union-attr, attr-defined]
        request.read(answer)
        request.end()
    assert [span.name for span in spans] == [last, f"POST {last}"]
    target = {"tools/call": "gen_ai.tool.name", "prompts/get": "gen_ai.prompt.name"}.get(sent.method)
    if target is not None:
        assert (spans[0].attributes or {})[target] == (sent.target() or "")[:128]


def test_a_listed_tool_exists() -> None:
    traced = Traced()
    with traced.recording() as spans:
        lists = traced.begun(message("tools/list"))
        lists.read(b'{"result":{"tools":[{"name":"listed"}]}}')
        lists.end()
    assert [span.name for span in spans] == ["tools/list"]
    assert traced.telemetry._known.span_name("tools/call", "listed") == "tools/call listed"


def test_a_posted_response_is_not_a_message_of_its_own() -> None:
    """It answers a request that the server sent on a stream."""
    parsed = parse(b'{"jsonrpc":"2.0","id":1,"result":{}}')
    assert Traced().begin(parsed) is None


# --- parents and links ---------------------------------------------------------------------------


def ids(span: ReadableSpan) -> tuple[int, int] | None:
    return None if span.parent is None else (span.parent.trace_id, span.parent.span_id)


def test_a_message_with_a_trace_context_belongs_to_its_caller() -> None:
    """It links to what is around it and to the session's start; what it starts hangs below it."""
    traced = Traced()
    with traced.recording() as spans, traced.tracer.start_as_current_span("http"):
        request = traced.begun(message(meta={"traceparent": CALLER, "tracestate": "a=b"}))
        traced.tracer.start_span("inner").end()
        request.end()
    inner, span, http = spans
    assert ids(span) == (0xCA, 0xC1)
    assert span.context.trace_state == {"a": "b"}
    assert inner.parent == span.context
    assert links(span) == {http.context.span_id, 0x51}


@pytest.mark.parametrize("meta", [None, {}, {"traceparent": "odd"}, {"traceparent": 7}, {"baggage": "a=b"}])
def test_a_message_without_one_belongs_to_what_is_around_it(meta: dict[str, Any] | None) -> None:
    traced = Traced()
    with traced.recording() as spans, traced.tracer.start_as_current_span("http"):
        traced.begun(message(meta=meta)).end()
    span, http = spans
    assert span.parent == http.context
    assert links(span) == {0x51}


def test_alone_it_is_a_root() -> None:
    traced = Traced()
    with traced.recording() as spans:
        traced.begun(session=session(trace=None)).end()
        traced.begun(session=session(trace="odd")).end()
        traced.begun(message(meta={"traceparent": CALLER})).end()
    assert [(ids(span), links(span)) for span in spans] == [(None, set()), (None, set()), ((0xCA, 0xC1), {0x51})]


def test_a_session_can_be_one_trace() -> None:
    """Then every message hangs below the session's start, and links to its caller and to what is around it."""
    traced = Traced(trace="session")
    with traced.recording() as spans, traced.tracer.start_as_current_span("http"):
        traced.begun(message(meta={"traceparent": CALLER})).end()
        traced.begun().end()
        traced.begun(session=None).end()
    first, second, sessionless, http = spans
    assert ids(first) == ids(second) == (0x5E, 0x51)
    assert links(first) == {0xC1, http.context.span_id}
    assert links(second) == {http.context.span_id}
    assert sessionless.parent == http.context


def test_the_context_before_is_current_again_afterwards() -> None:
    traced = Traced()
    with traced.tracer.start_as_current_span("http") as http:
        request = traced.begun()
        assert get_current_span() is not http
        request.end()
        assert get_current_span() is http
    traced.provider.shutdown()


def test_a_chat_that_comes_as_baggage_of_the_message_keeps_its_name() -> None:
    traced = Traced()
    with traced.recording() as spans:
        request = traced.begun(message(meta={"baggage": "session.id=chat"}))
        assert baggage.get_baggage("session.id") == "chat"
        request.end()
    assert "session.id" not in (spans[0].attributes or {})
    assert (spans[0].attributes or {})["mcp.session.id"] == SESSION.ref


@pytest.mark.parametrize("named", [{}, {"session.id": "chat"}])
def test_a_chat_that_names_the_span_around_a_creation_keeps_its_name(named: dict[str, str]) -> None:
    """The session is known only once it is made; its own spans, too, then leave the trace to the chat."""
    traced = Traced()
    around = traced.tracer.start_as_current_span("http", kind=SpanKind.SERVER, attributes=named)
    with traced.recording() as spans, around:
        request = traced.begun(message("sessions/create"), None, is_forwarded=False)
        traced.telemetry.start(SESSION).end()  # type: ignore[union-attr]
        request.name_session(SESSION.ref)
        request.end()
    start, created, _ = spans
    assert {"session.id" in (span.attributes or {}) for span in (start, created)} == {not named}
    assert {(span.attributes or {})["mcp.session.id"] for span in (start, created)} == {SESSION.ref}


def test_a_trace_context_that_cannot_be_read_is_none() -> None:
    parsed = parse(b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":{"traceparent":"\\ud800"}}}')
    traced = Traced()
    with traced.recording() as spans:
        traced.begun(parsed).end()
    assert spans[0].parent is None


def test_a_span_that_is_not_recorded_costs_nothing_and_hides_nothing() -> None:
    """It is current all the same, so that its decision reaches what is below it."""
    provider = TracerProvider(sampler=DEFAULT_OFF, shutdown_on_exit=False)
    request = telemetry_on(provider).begin(message(), RequestHeaders([]), {}, SESSION)
    assert request is not None
    assert get_current_span().get_span_context().is_valid
    request.end(ValueError())
    assert not get_current_span().get_span_context().is_valid
    provider.shutdown()


def test_without_an_sdk_there_is_no_span_to_end() -> None:
    request = telemetry_on(NoOpTracerProvider()).begin(message(), RequestHeaders([]), {}, SESSION)
    assert request is not None
    assert request.span is None
    request.end()


def test_a_sampler_knows_the_session_before_the_span_does() -> None:
    """So that whole sessions can be kept: what it is asked with is all that it knows."""
    provider = TracerProvider(sampler=SessionSampler(0), shutdown_on_exit=False)
    tracing = telemetry_on(provider)
    recorded = []
    for of in (SESSION, None):
        request = tracing.begin(message(), RequestHeaders([]), {}, of)
        assert request is not None
        recorded.append(get_current_span().is_recording())
        request.end()
    assert recorded == [False, True]
    provider.shutdown()


# --- the option ----------------------------------------------------------------------------------

# By the option, and whether the server makes its own: our span's kind for what is forwarded, and for what is not.
KINDS: dict[tuple[Spans, bool], tuple[SpanKind | None, SpanKind | None]] = {
    ("auto", False): (SpanKind.SERVER, SpanKind.SERVER),
    ("auto", True): (None, SpanKind.SERVER),
    **{("enrich", is_native): (None, None) for is_native in (False, True)},
    **{("off", is_native): (None, None) for is_native in (False, True)},
}


@pytest.mark.parametrize(("case", "kinds"), KINDS.items(), ids=str)
def test_the_option_chooses_whether_there_is_a_span_and_its_kind(
    case: tuple[Spans, bool], kinds: tuple[SpanKind | None, SpanKind | None]
) -> None:
    """A server that makes its own never sees what we answer ourselves, so that has one of ours."""
    option, is_native = case
    traced = Traced(option, is_native=is_native)
    with traced.recording() as spans:
        for is_forwarded in (True, False):
            traced.begun(is_forwarded=is_forwarded).end()
    assert [span.kind for span in spans] == [kind for kind in kinds if kind is not None]


def test_where_the_server_makes_its_own_the_span_around_names_the_session() -> None:
    """The HTTP request's, which started before its session was known; without a session it names none."""
    traced = Traced(is_native=True)
    with traced.recording() as spans:
        for of in (SESSION, None):
            with traced.tracer.start_as_current_span("http", kind=SpanKind.SERVER):
                traced.begun(session=of).end()
    assert [dict(span.attributes or {}) for span in spans] == [{**NAMED, **LABELS, **TURN}, {**LABELS, **TURN}]


def test_the_scope_of_each_message_holds_the_context_for_handlers_that_run_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mcp_sessions.telemetry._recorder.wrap_handlers", lambda servers: True)
    traced = Traced("enrich")
    scope: dict[str, Any] = {}
    with traced.tracer.start_as_current_span("http") as around:
        traced.begun(scope=scope).end()
    assert get_current_span(scope[SCOPE_KEY].context) is around


def test_the_servers_own_span_stands_in_the_sessions_trace() -> None:
    """In that mode the session's start is current while the server handles a message."""
    traced = Traced(is_native=True, trace="session")
    request = traced.begun()
    assert get_current_span().get_span_context().span_id == 0x51
    request.end()
    assert not get_current_span().get_span_context().is_valid


def test_a_servers_own_spans_find_the_baggage_of_the_message() -> None:
    """The span around them stays, since the server takes its parent from the message itself."""
    traced = Traced(is_native=True)
    with traced.recording() as spans, traced.tracer.start_as_current_span("http", kind=SpanKind.SERVER) as http:
        request = traced.begun(message(meta={"traceparent": CALLER, "baggage": "session.id=chat"}))
        assert baggage.get_baggage("session.id") == "chat"
        assert get_current_span() is http
        request.end()
        assert baggage.get_baggage("session.id") is None
    assert (spans[0].attributes or {}) == {"mcp.session.id": SESSION.ref, **LABELS, **TURN}


# --- with metrics --------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["auto", "enrich", "off"])
@pytest.mark.parametrize("of", [SESSION, None])
def test_every_message_is_timed_with_a_span_or_without(option: Spans, of: Claims | None) -> None:
    """Spans and metrics are chosen apart."""
    seen: list[RequestTelemetry] = []
    traced = Traced(option, feed=SimpleNamespace(begin=lambda *_, **__: None, operation=seen.append))
    traced.begun(session=of).end()
    (request,) = seen
    assert (request.versions["mcp.protocol.version"], request.outcome) == ("2025-11-25", Outcome())
    assert request.seconds > 0
    assert context.get_current() == {}
