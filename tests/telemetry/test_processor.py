"""`SessionSpanProcessor` names the session on every span of its request; `SessionSampler` records whole sessions."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from apps import Server, sessions
from clients import Client
from opentelemetry import baggage
from opentelemetry.context import Context
from opentelemetry.sdk.trace import Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import (
    INVALID_SPAN,
    NonRecordingSpan,
    SpanContext,
    TraceFlags,
    Tracer,
    TraceState,
    set_span_in_context,
)
from recorded import ALIAS, Recorder, process_wide, said

from mcp_sessions import Session
from mcp_sessions.telemetry import Correlation, SessionSpanProcessor, current_correlation
from mcp_sessions.telemetry._processor import SessionSampler, sampling_ratio_of

Attributes = dict[str, dict[str, Any]]
OURS = "session.id", "mcp.session.id", ALIAS
CHAT = {"session.id": "a chat"}
REMOTE = set_span_in_context(NonRecordingSpan(SpanContext(1, 1, is_remote=True, trace_flags=TraceFlags(1))))


@contextmanager
def tracing(*before: SpanProcessor, name: str = "tests") -> Iterator[tuple[Tracer, Attributes]]:
    """A tracer whose provider has the processor, and, when the block is over, the attributes of its spans by name."""
    provider, recorder = TracerProvider(shutdown_on_exit=False), Recorder()
    attributes: Attributes = {}
    for processor in (*before, SessionSpanProcessor(aliases=[ALIAS]), recorder):
        provider.add_span_processor(processor)
    with recorder.recording() as spans:
        yield provider.get_tracer(name), attributes
    attributes.update((span.name, dict(span.attributes or {})) for span in spans)
    provider.force_flush()
    provider.shutdown()


async def handling(work: Callable[[Session], object]) -> str:
    """Do some work within a session's request; the session."""

    async def tool(session: Session | None, arguments: dict[str, Any]) -> str:
        assert session is not None
        work(session)
        return session.ref

    client = Client(sessions(Server(tool=tool)))
    ref: str = (await client.tool("tool", session=await client.create())).result["content"]
    return ref


def nest(tracer: Tracer, **how: Any) -> None:
    with tracer.start_as_current_span("outer", **how):
        tracer.start_span("inner").end()


async def test_every_span_within_a_sessions_request_names_it() -> None:
    """And those below, also in a thread that copies no context; the span above may be of another session's request."""
    another = dict.fromkeys(OURS, "ses_another")
    with tracing() as (tracer, attributes), ThreadPoolExecutor(1) as pool:

        def start(session: Session) -> None:
            with tracer.start_as_current_span("outer") as outer:
                tracer.start_span("inner").end()
                pool.submit(lambda: tracer.start_span("thread", set_span_in_context(outer, Context())).end()).result()

        with tracer.start_as_current_span("above", attributes=another):
            ref = await handling(start)
        tracer.start_span("after").end()
    own = dict.fromkeys(OURS, ref)
    assert attributes == {"thread": own, "inner": own, "outer": own, "above": another, "after": {}}


async def test_a_span_that_is_not_recorded_stays_as_it_is() -> None:
    processor = SessionSpanProcessor()
    await handling(lambda session: processor.on_start(INVALID_SPAN))


async def test_the_middlewares_own_spans_are_left_to_it() -> None:
    """It names the session on them itself, which may not be the one whose request is handled."""
    with tracing(name="mcp_sessions") as (tracer, attributes):
        await handling(lambda session: nest(tracer))
    assert attributes == {"outer": {}, "inner": {}}


class Chat(SpanProcessor):
    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        span.set_attributes(CHAT)


@pytest.mark.parametrize(
    ("how", "before", "names", "kept"),
    [
        # baggage of the message, which ends at the span that takes its parent from there
        (lambda _: {"context": baggage.set_baggage("session.id", "a chat", REMOTE)}, [], OURS[1:2], ({}, {})),
        (lambda _: {"attributes": CHAT}, [], OURS[1:2], (CHAT, {})),
        (lambda _: {}, [Chat()], OURS[1:2], (CHAT, CHAT)),
        (lambda session: {"context": baggage.set_baggage("session.id", session.ref)}, [], OURS, ({}, {})),
    ],
    ids=["baggage", "an attribute of the span", "another processor", "baggage that is our own ref"],
)
async def test_a_chat_keeps_its_name(
    how: Callable[[Session], dict[str, Any]],
    before: list[SpanProcessor],
    names: tuple[str, ...],
    kept: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    """Where `session.id` is a client's own, ours is `mcp.session.id` alone on every span below."""
    with tracing(*before) as (tracer, attributes):
        ref = await handling(lambda session: nest(tracer, **how(session)))
    ours = dict.fromkeys(names, ref)
    assert attributes == {"outer": {**kept[0], **ours}, "inner": {**kept[1], **ours}}


async def test_it_changes_no_method_of_a_span() -> None:
    """What FastMCP writes over `mcp.session.id` on its own spans stays; `session.id` is the session's."""
    with tracing(name="fastmcp") as (tracer, attributes):

        def start(session: Session) -> None:
            with tracer.start_as_current_span("tools/call") as span:
                assert not {"end", "set_attributes", "set_attribute"} & vars(span).keys()
                span.set_attributes({"mcp.session.id": "random"})
                with tracer.start_as_current_span("below"):
                    pass

        ref = await handling(start)
    assert (attributes["tools/call"]["session.id"], attributes["tools/call"]["mcp.session.id"]) == (ref, "random")
    assert attributes["below"] == dict.fromkeys(OURS, ref)


def test_it_has_every_method_that_the_sdk_calls(caplog: pytest.LogCaptureFixture) -> None:
    """It is no subclass, so that the SDK need not be there. A fault of ours is a line in the log and nothing else."""
    assert {name for name in vars(SpanProcessor) if not name.startswith("__")} <= vars(SessionSpanProcessor).keys()
    processor = SessionSpanProcessor()
    for hook in (processor.on_start, processor._on_ending, processor.on_end):
        hook(object())
    assert processor.force_flush()
    assert caplog.messages == ["cannot add the session to a span: AttributeError"]


# --- what a client calls its conversation --------------------------------------------------------------

LABELLED = {"_meta": {"openai/session": "c1"}}
LABEL = {"mcp_sessions.correlation": "c1", "mcp_sessions.correlation.source": "meta:openai/session"}


@pytest.mark.parametrize(
    ("within_session", "method", "option"),
    [(False, "tools/call", "off"), (True, "tools/call", "auto"), (False, "initialize", "off")],
)
async def test_a_label_is_on_the_spans_of_its_request_and_is_no_session(
    within_session: bool, method: str, option: str
) -> None:
    """On the message's span, else the one around, and below; tasks that a handshake starts do not inherit it."""
    seen: list[Correlation | None] = []

    async def tool(session: Session | None, arguments: dict[str, Any]) -> str:
        tracer.start_span("in the tool").end()
        seen.append(current_correlation())
        return "done" if session is None else session.ref

    client = Client(sessions(Server(tool=tool), correlate=True, spans=option))
    session = await client.create() if within_session else None
    with tracing() as (tracer, attributes), process_wide().recording() as spans:
        with tracer.start_as_current_span("around"):
            answer = await client.send(method, {"name": "tool", **LABELLED}, session=session)
        tracer.start_span("after").end()
    named = dict.fromkeys(OURS, answer.result.get("content")) if within_session else {}
    in_the_tool = {"in the tool": {**LABEL, **named}} if method == "tools/call" else {}
    assert attributes == {**in_the_tool, "around": LABEL if option == "off" else {}, "after": {}}
    for span in spans:
        assert said(span, *LABEL, "session.id") == [*LABEL.values(), named["session.id"]]
    assert len(spans) == (option == "auto")
    assert seen == [Correlation("c1", "meta:openai/session")] * len(in_the_tool)


# --- the sampler -------------------------------------------------------------------------------------

REFS = [f"ses_{number:024x}" for number in range(2_000)]


def sampled(sampler: SessionSampler, **attributes: str) -> bool:
    provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
    span = provider.get_tracer("tests").start_span("a", attributes=attributes)
    return span.get_span_context().trace_flags.sampled


def test_sessions_are_spread_evenly_and_for_ever_in_the_same_way() -> None:
    """No worker asks another one; a session that is kept at 10 % is kept at 20 %, too, and whole or not at all."""
    assert 150 < len([ref for ref in REFS if sampling_ratio_of(ref) < 0.1]) < 250
    assert sampling_ratio_of("ses_a") == pytest.approx(0.10409, abs=1e-5)
    decided = {ref: sampled(SessionSampler(0.5), **{"mcp.session.id": ref}) for ref in REFS[:20]}
    assert decided == {ref: sampling_ratio_of(ref) < 0.5 for ref in REFS[:20]}
    for named in ({}, {"mcp.session.id": "the transport's own"}):  # in no session of ours
        assert sampled(SessionSampler(0), **named)
        assert not sampled(SessionSampler(1, fallback=ALWAYS_OFF), **named)


@pytest.mark.parametrize(("ratio", "expected"), [(0, False), (1, True)])
async def test_spans_within_a_sessions_request_are_decided_by_it(ratio: float, expected: bool) -> None:
    above = NonRecordingSpan(SpanContext(1, 1, is_remote=True, trace_state=TraceState([("a", "b")])))
    provider = TracerProvider(sampler=SessionSampler(ratio), shutdown_on_exit=False)
    found: list[SpanContext] = []

    def start(session: Session) -> None:
        span = provider.get_tracer("tests").start_span("a", set_span_in_context(above))
        found.append(span.get_span_context())

    await handling(start)
    provider.shutdown()
    assert [(one.trace_flags.sampled, dict(one.trace_state)) for one in found] == [(expected, {"a": "b"})]


def test_a_sampler_is_described_and_its_ratio_is_a_share() -> None:
    assert SessionSampler(0.1, fallback=ALWAYS_OFF).get_description() == "SessionSampler{0.1,AlwaysOffSampler}"
    for ratio in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="must be from 0 to 1"):
            SessionSampler(ratio)
