"""`SessionSpanProcessor` names the session on every span of its request, and keeps a foreign `session.id`.

`SessionSampler` records whole sessions, and the same ones on every worker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from apps import Server, sessions
from clients import Client
from opentelemetry import baggage, context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, DEFAULT_OFF
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    TraceFlags,
    Tracer,
    TraceState,
    set_span_in_context,
    use_span,
)
from recorded import Recorder

from mcp_sessions import Session, current_session
from mcp_sessions.telemetry import SessionSpanProcessor
from mcp_sessions.telemetry._processor import SessionSampler, sampling_ratio_of

Attributes = dict[str, dict[str, Any]]
OURS = "session.id", "mcp.session.id"
CHAT = {"session.id": "a chat"}
REMOTE = NonRecordingSpan(SpanContext(1, 1, is_remote=True, trace_flags=TraceFlags(1)))


@contextmanager
def tracing(*before: SpanProcessor, name: str = "tests", **options: Any) -> Iterator[tuple[Tracer, Attributes]]:
    """A tracer whose provider has the processor, and, when the block is over, the attributes of its spans by name."""
    provider, recorder = TracerProvider(shutdown_on_exit=False), Recorder()
    attributes: Attributes = {}
    processors: list[SpanProcessor] = [*before, SessionSpanProcessor(**options), recorder]
    for processor in processors:
        provider.add_span_processor(processor)
    with recorder.recording() as spans:
        yield provider.get_tracer(name), attributes
    attributes.update((span.name, dict(span.attributes or {})) for span in spans)
    provider.force_flush()
    provider.shutdown()


async def handling(work: Callable[[], object]) -> str:
    """Do some work within a session's request; the session."""

    async def tool(session: Session | None, arguments: dict[str, Any]) -> str:
        assert session is not None
        work()
        return session.ref

    client = Client(sessions(Server(tool=tool)))
    ref: str = (await client.tool("tool", session=await client.create())).result["content"]
    return ref


def nested(tracer: Tracer, **how: Any) -> Callable[[], None]:
    def start() -> None:
        with tracer.start_as_current_span("outer", **how):
            tracer.start_span("inner").end()

    return start


async def test_every_span_within_a_sessions_request_names_it() -> None:
    """A span and the one below it carry both names; one that is older than the session's request carries neither."""
    with tracing() as (tracer, attributes), tracer.start_as_current_span("before"):
        ref = await handling(nested(tracer))
    assert attributes == {"outer": dict.fromkeys(OURS, ref), "inner": dict.fromkeys(OURS, ref), "before": {}}


async def test_outside_of_a_session_nothing_is_set() -> None:
    with tracing() as (tracer, attributes):
        nested(tracer)()
        await handling(lambda: None)
        nested(tracer)()
    assert attributes == {"outer": {}, "inner": {}}


async def test_the_middlewares_own_spans_are_left_to_it() -> None:
    """It names the session on them itself, which may not be the one whose request is handled."""
    with tracing(name="mcp_sessions") as (tracer, attributes):
        await handling(nested(tracer))
    assert attributes == {"outer": {}, "inner": {}}


async def test_a_chat_that_came_as_baggage_keeps_its_name() -> None:
    """In the current context, as it comes from a header: ours is `mcp.session.id` alone on every span."""
    with tracing(aliases=["gen_ai.conversation.id"]) as (tracer, attributes):
        token = context.attach(baggage.set_baggage("session.id", "a chat"))
        ref = await handling(nested(tracer))
        context.detach(token)
    assert attributes == {"outer": {"mcp.session.id": ref}, "inner": {"mcp.session.id": ref}}


async def test_a_chat_that_came_as_baggage_of_a_message_keeps_its_name() -> None:
    """Such baggage ends at the span whose parent was taken from the message; the spans below do as that one does."""
    parent = baggage.set_baggage("session.id", "a chat", set_span_in_context(REMOTE))
    with tracing() as (tracer, attributes):
        ref = await handling(nested(tracer, context=parent))
    assert attributes == {"outer": {"mcp.session.id": ref}, "inner": {"mcp.session.id": ref}}


async def test_our_own_ref_as_baggage_changes_nothing() -> None:
    """A client that sends the session's ref means ours."""
    with tracing() as (tracer, attributes):

        def start() -> None:
            named = baggage.set_baggage("session.id", current_ref())
            nested(tracer, context=named)()

        ref = await handling(start)
    assert attributes["outer"] == attributes["inner"] == dict.fromkeys(OURS, ref)


def current_ref() -> str:
    session = current_session()
    assert session is not None
    return session.ref


async def test_a_name_that_a_span_was_given_stays_on_it_and_below_it() -> None:
    with tracing() as (tracer, attributes):
        ref = await handling(nested(tracer, attributes=CHAT))
    assert attributes == {"outer": {**CHAT, "mcp.session.id": ref}, "inner": {"mcp.session.id": ref}}


async def test_a_name_that_another_processor_gave_stays() -> None:
    class Chat(SpanProcessor):
        def on_start(self, span: Span, parent_context: context.Context | None = None) -> None:
            span.set_attributes(CHAT)

    with tracing(Chat()) as (tracer, attributes):
        ref = await handling(nested(tracer))
    assert attributes["outer"] == attributes["inner"] == {**CHAT, "mcp.session.id": ref}


async def test_a_session_within_another_sessions_request_is_named_by_its_own_ref() -> None:
    """A server that calls another one in its own process: the span above is ours, of the other session."""
    with tracing() as (tracer, attributes), tracer.start_as_current_span("above") as above:
        above.set_attributes(dict.fromkeys(OURS, "ses_another"))
        ref = await handling(nested(tracer))
    assert attributes["outer"] == attributes["inner"] == dict.fromkeys(OURS, ref)


async def test_what_fastmcp_writes_over_mcp_session_id_is_left_out() -> None:
    """Its own spans' other attributes stay, and so does what it writes where there is no session of ours."""
    written = {"mcp.session.id": "random", "fastmcp.server.name": "small"}
    with tracing(name="fastmcp") as (tracer, attributes):

        def start(name: str) -> None:
            with tracer.start_as_current_span(name) as span:
                span.set_attributes(written)
                span.set_attribute("more", True)

        start("without")
        ref = await handling(lambda: start("within"))
    assert attributes["within"] == {**dict.fromkeys(OURS, ref), "fastmcp.server.name": "small", "more": True}
    assert attributes["without"] == {**written, "more": True}


async def test_a_span_that_is_not_recorded_is_not_touched() -> None:
    provider = TracerProvider(sampler=DEFAULT_OFF, shutdown_on_exit=False)
    provider.add_span_processor(SessionSpanProcessor())
    await handling(nested(provider.get_tracer("tests")))
    await handling(lambda: SessionSpanProcessor().on_start(REMOTE))
    provider.shutdown()
    with tracing() as (tracer, attributes), use_span(REMOTE):
        ref = await handling(nested(tracer))
    assert attributes["outer"] == dict.fromkeys(OURS, ref)


async def test_a_fault_of_ours_is_a_line_in_the_log_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    def refuse() -> bool:
        raise ValueError("not today")

    broken: Any = SimpleNamespace(is_recording=refuse)
    with caplog.at_level(logging.WARNING, "mcp_sessions"):
        SessionSpanProcessor().on_start(broken)
    assert caplog.messages == ["cannot add the session to a span: ValueError"]


def test_it_has_every_method_that_the_sdk_calls() -> None:
    """It is no subclass, so that the SDK need not be there: whatever the SDK's own class has, it has."""
    hooks = {name for name in vars(SpanProcessor) if not name.startswith("__")}
    assert hooks <= vars(SessionSpanProcessor).keys()
    ended: Any = ReadableSpan("ended")
    processor = SessionSpanProcessor()
    processor._on_ending(ended)
    processor.on_end(ended)
    assert processor.force_flush()


# --- the sampler -------------------------------------------------------------------------------------


REFS = [f"ses_{number:024x}" for number in range(2_000)]


def sampled(sampler: SessionSampler, **attributes: str) -> bool:
    provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
    span = provider.get_tracer("tests").start_span("a", attributes=attributes)
    span.end()
    provider.shutdown()
    return span.get_span_context().trace_flags.sampled


def test_sessions_are_spread_evenly_and_for_ever_in_the_same_way() -> None:
    """No worker asks another one; a session that is kept at 10 % is kept at 20 %, too."""
    kept = [ref for ref in REFS if sampling_ratio_of(ref) < 0.1]
    assert 150 < len(kept) < 250
    assert sampling_ratio_of("ses_a") == pytest.approx(0.10409, abs=1e-5)


def test_a_session_is_recorded_whole_or_not_at_all() -> None:
    sampler = SessionSampler(0.5)
    decisions = {ref: {sampled(sampler, **{"mcp.session.id": ref}) for _ in range(3)} for ref in REFS[:20]}
    assert decisions == {ref: {sampling_ratio_of(ref) < 0.5} for ref in REFS[:20]}


@pytest.mark.parametrize("named", [{}, {"mcp.session.id": "the transport's own"}])
def test_what_belongs_to_no_session_is_decided_otherwise(named: dict[str, str]) -> None:
    assert sampled(SessionSampler(0), **named)
    assert not sampled(SessionSampler(1, fallback=ALWAYS_OFF), **named)


@pytest.mark.parametrize(("ratio", "expected"), [(0, False), (1, True)])
async def test_spans_within_a_sessions_request_are_decided_by_it(ratio: float, expected: bool) -> None:
    provider = TracerProvider(sampler=SessionSampler(ratio), shutdown_on_exit=False)
    above = NonRecordingSpan(SpanContext(1, 1, is_remote=True, trace_state=TraceState([("a", "b")])))

    async def tool(session: Session | None, arguments: dict[str, Any]) -> list[object]:
        span = provider.get_tracer("tests").start_span("a", set_span_in_context(above))
        found = span.get_span_context()
        return [found.trace_flags.sampled, dict(found.trace_state)]

    client = Client(sessions(Server(tool=tool)))
    answer = await client.tool("tool", session=await client.create())
    assert answer.result["content"] == [expected, {"a": "b"}]
    provider.shutdown()


@pytest.mark.parametrize("ratio", [-0.1, 1.1, float("nan")])
def test_a_ratio_is_a_share(ratio: float) -> None:
    with pytest.raises(ValueError, match="must be from 0 to 1"):
        SessionSampler(ratio)


def test_it_describes_itself() -> None:
    assert SessionSampler(0.1, fallback=ALWAYS_OFF).get_description() == "SessionSampler{0.1,AlwaysOffSampler}"
