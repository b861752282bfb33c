"""`RequestSpans` makes one span per message, where the wrapped server makes none, and hangs it where it belongs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
from opentelemetry import baggage, context
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.sampling import DEFAULT_OFF
from opentelemetry.trace import NoOpTracerProvider, SpanKind, StatusCode, get_current_span
from recorded import Recorder

from mcp_sessions._protocol.jsonrpc import Message, parse
from mcp_sessions.errors import SessionNotFound
from mcp_sessions.telemetry.detect import Spans
from mcp_sessions.telemetry.outcome import Outcome, RequestTelemetry
from mcp_sessions.telemetry.processor import SessionSampler, SessionSpanProcessor
from mcp_sessions.telemetry.spans import RequestSpans, SessionSpans

CALLER = f"00-{0xCA:032x}-{0xC1:016x}-01"
START = f"00-{0x5E:032x}-{0x51:016x}-01"


class About(NamedTuple):
    """What a token says of its session."""

    ref: str
    trace: str | None = None
    client: str | None = None


SESSION = About("ses_a", START, "wire 1.0")
STAMP = {"session.id": "ses_a", "mcp.session.id": "ses_a"}


def message(method: str = "tools/call", meta: dict[str, Any] | None = None, **more: Any) -> Message:
    envelope = {"jsonrpc": "2.0", "id": 7, "method": method, "params": {"name": "add", "_meta": meta}, **more}
    parsed = parse(json.dumps(envelope).encode())
    assert isinstance(parsed, Message)
    return parsed


class Tracing:
    """A provider, the spans that ended in it, and the request spans under test."""

    def __init__(self, spans: Spans = "auto", *, is_native: bool = False, **options: Any) -> None:
        self.provider = TracerProvider(shutdown_on_exit=False)
        self._recorder = Recorder()
        self.provider.add_span_processor(SessionSpanProcessor())
        self.provider.add_span_processor(self._recorder)
        self.tracer = self.provider.get_tracer("tests")
        self.requests = RequestSpans(spans, tracer_provider=self.provider, **options)
        self.requests.is_native = is_native

    def begin(self, said: Message | None = None, about: About | None = SESSION, **how: Any) -> RequestTelemetry | None:
        return self.requests.begin(said or message(), version="2025-11-25", about=about, **how)

    def begun(self, said: Message | None = None, about: About | None = SESSION, **how: Any) -> RequestTelemetry:
        handling = self.begin(said, about, **how)
        assert handling is not None
        return handling

    @contextmanager
    def recording(self) -> Iterator[list[ReadableSpan]]:
        with self._recorder.recording() as spans:
            yield spans
        self.provider.shutdown()


def links(span: ReadableSpan) -> set[int]:
    return {link.context.span_id for link in span.links}


# --- what a span says ----------------------------------------------------------------------------


def test_a_message_is_a_server_span_by_the_conventions() -> None:
    """Its name, its kind, its attributes, its session and what its client calls itself."""
    tracing = Tracing()
    with tracing.recording() as spans:
        tracing.begun().end()
    (span,) = spans
    assert (span.name, span.kind, span.status.status_code) == ("tools/call add", SpanKind.SERVER, StatusCode.UNSET)
    assert span.attributes == {
        **STAMP,
        "mcp.method.name": "tools/call",
        "mcp.protocol.version": "2025-11-25",
        "jsonrpc.request.id": "7",
        "gen_ai.tool.name": "add",
        "gen_ai.operation.name": "execute_tool",
        "network.transport": "tcp",
        "network.protocol.name": "http",
        "mcp_sessions.client": "wire 1.0",
    }


def test_a_message_of_no_session_names_none() -> None:
    """And one that names no tool or prompt is called by its method."""
    tracing = Tracing()
    with tracing.recording() as spans:
        tracing.begun(message("tools/list"), None).end()
        tracing.begun(message("tools/list"), About("ses_a")).end()
    assert [span.name for span in spans] == ["tools/list", "tools/list"]
    assert STAMP.keys().isdisjoint(spans[0].attributes or {})
    assert "mcp_sessions.client" not in (spans[1].attributes or {})


def test_a_posted_response_is_no_message_of_its_own() -> None:
    """It answers a request that the server sent on a stream."""
    parsed = parse(b'{"jsonrpc":"2.0","id":1,"result":{}}')
    assert isinstance(parsed, Message)
    assert Tracing().begin(parsed) is None


ERROR = b'{"jsonrpc":"2.0","id":7,"error":{"code":-32602,"message":"no basket 7"}}'
FAILED = b'{"jsonrpc":"2.0","id":7,"result":{"isError":true}}'
PROGRESS = b'{"jsonrpc":"2.0","method":"notifications/progress"}'


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ([ERROR], {"error.type": "-32602", "rpc.response.status_code": "-32602"}),
        ([FAILED, PROGRESS], {"error.type": "tool_error"}),
        ([b'{"error":"invalid_token"}', b'{"id":7}'], {"error.type": "401"}),
        ([], {"error.type": "401"}),
    ],
    ids=["error", "tool error", "another page", "no answer"],
)
def test_an_error_is_told_by_its_class(texts: list[bytes], said: dict[str, str]) -> None:
    """By the answer, or the HTTP status where none came; what the server says of it is not written down."""
    tracing = Tracing()
    with tracing.recording() as spans:
        handling = tracing.begun()
        handling.status = 401
        for text in texts:
            handling.hear(text)
        handling.end()
    (span,) = spans
    names = ("error.type", "rpc.response.status_code", "mcp_sessions.reason")
    assert {name: value for name, value in (span.attributes or {}).items() if name in names} == said
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description is None


def test_a_refusal_has_its_reason_and_our_own_words() -> None:
    """The client was told less."""
    tracing = Tracing()
    with tracing.recording() as spans:
        handling = tracing.begun(about=None, is_forwarded=False)
        handling.refuse(SessionNotFound("token_signature"), -32043)
        handling.hear(ERROR)
        handling.end()
    (span,) = spans
    said = span.attributes or {}
    assert (said["error.type"], said["mcp_sessions.reason"]) == ("-32043", "token_signature")
    assert span.status.description == "Session not found"


# --- where it hangs ------------------------------------------------------------------------------


def ids(span: ReadableSpan) -> tuple[int, int] | None:
    return None if span.parent is None else (span.parent.trace_id, span.parent.span_id)


def test_a_message_with_a_trace_context_belongs_to_its_caller() -> None:
    """And links to what is around it, and to the session's start; what it starts hangs below it."""
    tracing = Tracing()
    with tracing.recording() as spans, tracing.tracer.start_as_current_span("http"):
        handling = tracing.begun(message(meta={"traceparent": CALLER, "tracestate": "a=b"}))
        tracing.tracer.start_span("inner").end()
        handling.end()
    inner, span, http = spans
    assert ids(span) == (0xCA, 0xC1)
    assert span.context.trace_state == {"a": "b"}
    assert inner.parent == span.context
    assert links(span) == {http.context.span_id, 0x51}


@pytest.mark.parametrize("meta", [None, {}, {"traceparent": "odd"}, {"traceparent": 7}, {"baggage": "a=b"}])
def test_a_message_without_one_belongs_to_what_is_around_it(meta: dict[str, Any] | None) -> None:
    """Which then needs no link."""
    tracing = Tracing()
    with tracing.recording() as spans, tracing.tracer.start_as_current_span("http"):
        tracing.begun(message(meta=meta)).end()
    span, http = spans
    assert span.parent == http.context
    assert links(span) == {0x51}


def test_alone_it_is_a_root() -> None:
    """With nothing around it, no caller and no start there is nothing to link."""
    tracing = Tracing()
    with tracing.recording() as spans:
        tracing.begun(about=About("ses_a", None)).end()
        tracing.begun(about=About("ses_a", "odd")).end()
        tracing.begun(message(meta={"traceparent": CALLER})).end()
    assert [(ids(span), links(span)) for span in spans] == [(None, set()), (None, set()), ((0xCA, 0xC1), {0x51})]


def test_a_session_can_be_one_trace() -> None:
    """Then every message hangs below the session's start, and links to its caller and to what is around it."""
    tracing = Tracing(trace="session")
    with tracing.recording() as spans, tracing.tracer.start_as_current_span("http"):
        tracing.begun(message(meta={"traceparent": CALLER})).end()
        tracing.begun().end()
        tracing.begun(about=None).end()
    first, second, sessionless, http = spans
    assert ids(first) == ids(second) == (0x5E, 0x51)
    assert links(first) == {0xC1, http.context.span_id}
    assert links(second) == {http.context.span_id}
    assert sessionless.parent == http.context


def test_what_was_current_is_current_again() -> None:
    """The span's time as the current one ends with it."""
    tracing = Tracing()
    with tracing.tracer.start_as_current_span("http") as http:
        handling = tracing.begun()
        assert get_current_span() is not http
        handling.end()
        assert get_current_span() is http
    tracing.provider.shutdown()


def test_a_chat_that_comes_as_baggage_of_the_message_keeps_its_name() -> None:
    """On our span, and in the context of all that the request starts."""
    tracing = Tracing()
    with tracing.recording() as spans:
        handling = tracing.begun(message(meta={"baggage": "session.id=chat"}))
        assert baggage.get_baggage("session.id") == "chat"
        handling.end()
    assert "session.id" not in (spans[0].attributes or {})
    assert (spans[0].attributes or {})["mcp.session.id"] == "ses_a"


@pytest.mark.parametrize("named", [{}, {"session.id": "chat"}])
def test_a_chat_that_names_the_span_around_a_creation_keeps_its_name(named: dict[str, str]) -> None:
    """The session is known only once it is made; its own spans, too, then leave the trace to the chat."""
    tracing = Tracing()
    with tracing.recording() as spans, tracing.tracer.start_as_current_span("http", attributes=named):
        handling = tracing.begun(message("sessions/create"), None, is_forwarded=False)
        SessionSpans(tracer_provider=tracing.provider).start("ses_a", expires_at=9).end()
        tracing.requests.name(SESSION)
        handling.end()
    start, created, _ = spans
    assert {"session.id" in (span.attributes or {}) for span in (start, created)} == {not named}
    assert {(span.attributes or {})["mcp.session.id"] for span in (start, created)} == {"ses_a"}


def test_a_trace_context_that_cannot_be_read_is_none() -> None:
    """A lone surrogate in it."""
    parsed = parse(b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":{"traceparent":"\\ud800"}}}')
    assert isinstance(parsed, Message)
    tracing = Tracing()
    with tracing.recording() as spans:
        tracing.begun(parsed).end()
    assert spans[0].parent is None


def test_a_span_that_is_not_recorded_costs_nothing_and_hides_nothing() -> None:
    """It is current all the same, so that its decision reaches what is below it."""
    provider = TracerProvider(sampler=DEFAULT_OFF, shutdown_on_exit=False)
    handling = RequestSpans(tracer_provider=provider).begin(message(), version=None, about=SESSION)
    assert handling is not None
    assert get_current_span().get_span_context().is_valid
    handling.end(ValueError())
    assert not get_current_span().get_span_context().is_valid
    provider.shutdown()


def test_without_an_sdk_there_is_no_span_to_end() -> None:
    """Nor is anything read that only a span would say."""
    assert RequestSpans(tracer_provider=NoOpTracerProvider()).begin(message(), version=None, about=SESSION) is None


def test_a_sampler_is_told_of_the_session_before_the_span_is() -> None:
    """So that whole sessions can be kept: what it is asked with is all that it knows."""
    provider = TracerProvider(sampler=SessionSampler(0), shutdown_on_exit=False)
    requests = RequestSpans(tracer_provider=provider)
    recorded = {}
    for about in (SESSION, None):
        handling = requests.begin(message(), version=None, about=about)
        assert handling is not None
        recorded[about] = get_current_span().is_recording()
        handling.end()
    assert recorded == {SESSION: False, None: True}
    provider.shutdown()


# --- the option ----------------------------------------------------------------------------------

# By the option, and whether the server makes its own: our span's kind for what is forwarded, and for what is not.
KINDS: dict[tuple[Spans, bool], tuple[SpanKind | None, SpanKind | None]] = {
    ("auto", False): (SpanKind.SERVER, SpanKind.SERVER),
    ("auto", True): (None, SpanKind.SERVER),
    **{("enrich", is_native): (None, None) for is_native in (False, True)},
    **{("server", is_native): (SpanKind.SERVER, SpanKind.SERVER) for is_native in (False, True)},
    **{("internal", is_native): (SpanKind.INTERNAL, SpanKind.INTERNAL) for is_native in (False, True)},
    **{("off", is_native): (None, None) for is_native in (False, True)},
}


@pytest.mark.parametrize(("case", "kinds"), KINDS.items(), ids=str)
def test_the_option_says_whether_there_is_a_span_and_of_which_kind(
    case: tuple[Spans, bool], kinds: tuple[SpanKind | None, SpanKind | None]
) -> None:
    """A server that makes its own never sees what we answer ourselves, so that has one of ours."""
    option, is_native = case
    tracing = Tracing(option, is_native=is_native)
    with tracing.recording() as spans:
        for is_forwarded in (True, False):
            handling = tracing.begin(is_forwarded=is_forwarded)
            if handling is not None:
                handling.end()
    assert [span.kind for span in spans] == [kind for kind in kinds if kind is not None]


def test_where_the_server_makes_its_own_the_span_around_is_stamped() -> None:
    """The HTTP request's, which started before its session was known; no session, no stamp."""
    tracing = Tracing(is_native=True)
    with tracing.recording() as spans:
        for about in (SESSION, None):
            with tracing.tracer.start_as_current_span("http"):
                assert tracing.begin(about=about) is None
    assert [dict(span.attributes or {}) for span in spans] == [STAMP, {}]


def test_where_nothing_is_recorded_around_nothing_is_stamped() -> None:
    """Nor is anything to be ended."""
    assert Tracing("enrich").begin() is None


def test_the_servers_own_span_stands_in_the_sessions_trace() -> None:
    """In that mode the session's start is current while the server handles a message."""
    tracing = Tracing(is_native=True, trace="session")
    handling = tracing.begun()
    assert get_current_span().get_span_context().span_id == 0x51
    handling.end()
    assert not get_current_span().get_span_context().is_valid


def test_a_servers_own_spans_find_the_baggage_of_the_message() -> None:
    """The span around them stays, since the server takes its parent from the message itself."""
    tracing = Tracing(is_native=True)
    with tracing.recording() as spans, tracing.tracer.start_as_current_span("http") as http:
        handling = tracing.begun(message(meta={"traceparent": CALLER, "baggage": "session.id=chat"}))
        assert baggage.get_baggage("session.id") == "chat"
        assert get_current_span() is http
        handling.end()
        assert baggage.get_baggage("session.id") is None
    assert (spans[0].attributes or {}) == {"mcp.session.id": "ses_a"}


# --- with metrics --------------------------------------------------------------------------------


class Told:
    """Stands where the metrics stand."""

    def __init__(self) -> None:
        self.operations: list[tuple[str, str | None, Outcome]] = []

    def operation(
        self, message: Message, version: str | None, outcome: Outcome, *, seconds: float, ref: object
    ) -> None:
        assert seconds >= 0
        self.operations.append((message.method, version, outcome))


@pytest.mark.parametrize("option", ["server", "enrich", "off"])
@pytest.mark.parametrize("about", [SESSION, None])
def test_every_message_is_timed_with_a_span_or_without(option: Spans, about: About | None) -> None:
    """Spans and metrics are chosen apart."""
    told = Told()
    tracing = Tracing(option, listeners=[told])
    tracing.begun(about=about).end()
    assert told.operations == [("tools/call", "2025-11-25", Outcome())]
    assert context.get_current() == {}
