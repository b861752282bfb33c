"""A session's start and end are spans of their own, and the token's traceparent leads back to the start."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from opentelemetry import baggage, context
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.sampling import DEFAULT_OFF
from opentelemetry.trace import NonRecordingSpan, NoOpTracerProvider, SpanContext, TraceFlags, Tracer, use_span
from recorded import Recorder, telemetry_on

from mcp_sessions._session.claims import Claims
from mcp_sessions._session.events import SessionDeleted
from mcp_sessions.telemetry._context import as_parent, start_of
from mcp_sessions.telemetry._core import Trace
from mcp_sessions.telemetry._recorder import Start, Telemetry

REMOTE = NonRecordingSpan(SpanContext(1, 1, is_remote=True, trace_flags=TraceFlags(1)))
CLAIMS = Claims(
    kind="session",
    issuer="mcp-sessions",
    audience="mcp-sessions",
    jti="a",
    issued_at=0,
    expires_at=99,
    client="wire 1.0",
)


@pytest.fixture
def provider() -> Iterator[TracerProvider]:
    provider = TracerProvider(shutdown_on_exit=False)
    yield provider
    provider.shutdown()


@pytest.fixture
def tracer(provider: TracerProvider) -> Tracer:
    return provider.get_tracer("tests")


@pytest.fixture
def spans(provider: TracerProvider) -> Iterator[list[ReadableSpan]]:
    recorder = Recorder()
    provider.add_span_processor(recorder)
    with recorder.recording() as kept:
        yield kept


def started(telemetry: Telemetry) -> str | None:
    """The traceparent of a session that has been created."""
    start = begun(telemetry)
    start.end()
    return start.trace


def begun(telemetry: Telemetry, claims: Claims = CLAIMS) -> Start:
    start = telemetry.start(claims)
    assert start is not None
    return start


def test_the_start_says_where_all_conversations_of_a_principal_share_it(
    provider: TracerProvider, spans: list[ReadableSpan]
) -> None:
    """As it matters to who reads them as one conversation."""
    claims = msgspec.structs.replace(CLAIMS, kind="principal")
    begun(telemetry_on(provider), claims).end()
    assert (spans[0].attributes or {})["mcp_sessions.kind"] == "principal"


def test_the_start_is_a_span_that_ends_with_the_creation(provider: TracerProvider, spans: list[ReadableSpan]) -> None:
    """It names the session and when it ends at the latest, and its context is what the token carries."""
    creating = begun(telemetry_on(provider))
    assert spans == []
    creating.end()
    (start,) = spans
    assert start.name == "session start"
    assert start.attributes == {
        "session.id": CLAIMS.ref,
        "mcp.session.id": CLAIMS.ref,
        "mcp_sessions.client": "wire 1.0",
        "mcp_sessions.expires_at": 99,
    }
    found = start_of(creating.trace)
    assert found is not None
    assert found.is_remote
    assert (found.trace_id, found.span_id) == (start.context.trace_id, start.context.span_id)
    assert creating.trace == f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}"


def test_a_start_that_is_not_sampled_is_marked_so_in_the_token() -> None:
    """So that the requests below it are not sampled, either."""
    provider = TracerProvider(sampler=DEFAULT_OFF, shutdown_on_exit=False)
    telemetry = telemetry_on(provider, trace="session")
    text = started(telemetry)
    found = start_of(text)
    assert found is not None
    assert not found.trace_flags.sampled
    telemetry.observe(SessionDeleted(CLAIMS.ref, "deleted", 9, text))
    provider.shutdown()


class Idle(NoOpTracerProvider):
    """One that is not the API's own, and makes no spans all the same."""


def test_without_an_sdk_there_is_no_start() -> None:
    telemetry = telemetry_on(NoOpTracerProvider())
    assert telemetry.start(CLAIMS) is None


def test_without_spans_the_token_carries_nothing() -> None:
    """Not even where a caller sent a trace context: that one is not the session's."""
    telemetry = telemetry_on(Idle())
    assert started(telemetry) is None
    with use_span(REMOTE):
        assert started(telemetry) is None
    telemetry.observe(SessionDeleted(CLAIMS.ref, "deleted", 9, None))


@pytest.mark.parametrize("text", [None, "", "01-" + "1" * 32 + "-" + "1" * 16 + "-01", f"00-{0:032x}-{1:016x}-01"])
def test_a_text_that_is_not_a_traceparent_leads_nowhere(text: str | None) -> None:
    assert start_of(text) is None


def test_what_starts_below_a_start_is_its_child(tracer: Tracer) -> None:
    found = start_of(f"00-{5:032x}-{6:016x}-01")
    assert found is not None
    for within in (as_parent(found), as_parent(found, context.Context())):
        span = tracer.start_span("child", within)
        assert span.parent == found  # type: ignore[attr-defined]  # the SDK's span
        span.end()


@pytest.mark.parametrize(("trace", "named"), [("request", None), ("session", CLAIMS.ref)])
def test_a_chat_that_names_the_trace_keeps_its_name(
    provider: TracerProvider, spans: list[ReadableSpan], trace: Trace, named: str | None
) -> None:
    """Tools give a trace to the first session in it; one whose root is the start of ours is ours."""
    token = context.attach(baggage.set_baggage("session.id", "a chat"))
    started(telemetry_on(provider, trace=trace))
    context.detach(token)
    (start,) = spans
    attributes = start.attributes or {}
    assert (attributes.get("session.id"), attributes["mcp.session.id"]) == (named, CLAIMS.ref)
