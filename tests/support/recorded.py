"""Spans as the OpenTelemetry SDK makes them, kept in memory for tests to look at.

A process has one global tracer provider for its whole life, and the frameworks' own spans go to that one. So there is
one here, too, made at the first use: it records for whoever asks, and nothing in between. Tests that start their own
spans alone make a provider of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider

from mcp_sessions.telemetry import SessionSpanProcessor

ALIAS = "gen_ai.conversation.id"


class Recorder(SpanProcessor):
    """Keeps the spans that end while somebody asks for them."""

    def __init__(self) -> None:
        self._asking: list[list[ReadableSpan]] = []

    def on_end(self, span: ReadableSpan) -> None:
        """One more, for everybody who asks."""
        for kept in self._asking:
            kept.append(span)

    @contextmanager
    def recording(self) -> Iterator[list[ReadableSpan]]:
        """The spans that end within the block, as they come."""
        kept: list[ReadableSpan] = []
        self._asking.append(kept)
        try:
            yield kept
        finally:
            self._asking.remove(kept)


@cache
def process_wide() -> Recorder:
    """The recorder of this process's global tracer provider, which has the session processor."""
    provider, recorder = TracerProvider(), Recorder()
    provider.add_span_processor(SessionSpanProcessor(aliases=[ALIAS]))
    provider.add_span_processor(recorder)
    trace.set_tracer_provider(provider)
    assert trace.get_tracer_provider() is provider
    return recorder
