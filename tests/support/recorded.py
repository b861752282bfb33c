"""Spans of the OpenTelemetry SDK, kept in memory, from the one global tracer provider that a process can have."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider

from mcp_sessions.telemetry import SessionSpanProcessor

ALIAS = "gen_ai.conversation.id"


class Recorder(SpanProcessor):
    """Keeps the spans that end within a `recording` block."""

    def __init__(self) -> None:
        self._asking: list[list[ReadableSpan]] = []

    def on_end(self, span: ReadableSpan) -> None:
        for kept in self._asking:
            kept.append(span)

    @contextmanager
    def recording(self) -> Iterator[list[ReadableSpan]]:
        """Yield the list of the spans that end within the block."""
        kept: list[ReadableSpan] = []
        self._asking.append(kept)
        try:
            yield kept
        finally:
            self._asking.remove(kept)


@cache
def process_wide() -> Recorder:
    """Return the recorder of this process's global tracer provider, which has the session processor."""
    provider, recorder = TracerProvider(), Recorder()
    provider.add_span_processor(SessionSpanProcessor(aliases=[ALIAS]))
    provider.add_span_processor(recorder)
    trace.set_tracer_provider(provider)
    assert trace.get_tracer_provider() is provider
    return recorder


def named(spans: list[ReadableSpan], name: str) -> ReadableSpan:
    """Return the one span of a name."""
    (span,) = [span for span in spans if span.name == name]
    return span


def said(span: ReadableSpan, *names: str) -> list[Any]:
    """Return attributes of a span, None for those that it lacks."""
    return [(span.attributes or {}).get(name) for name in names]


def messages(spans: list[ReadableSpan], method: str) -> list[ReadableSpan]:
    """Return the spans of messages of a method, without those of HTTP instrumentations."""
    found = [span for span in spans if said(span, "mcp.method.name") == [method]]
    return [span for span in found if said(span, "http.method") == [None]]
