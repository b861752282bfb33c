"""`SessionSampler` records whole sessions, and the same ones on every worker."""

from __future__ import annotations

from typing import Any

import pytest
from apps import Server, sessions
from clients import Client
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceState, set_span_in_context

from mcp_sessions import Session
from mcp_sessions.telemetry._processor import SessionSampler, sampling_ratio_of

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
    """As samplers do, for the SDK's log."""
    assert SessionSampler(0.1, fallback=ALWAYS_OFF).get_description() == "SessionSampler{0.1,AlwaysOffSampler}"
