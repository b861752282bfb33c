"""Time, randomness and ids that would differ from run to run, held still while a scenario is played."""

from __future__ import annotations

import logging
import os
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from hashlib import sha256
from unittest.mock import patch

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator

from mcp_sessions._server import runtime
from mcp_sessions.telemetry import SessionSpanProcessor

ALIAS = "gen_ai.conversation.id"
"""Aliases hold for the whole process, so the corpus has the alias of other tests."""


class Randomness:
    """Reproducible bytes in place of the system's, with a sequence for each length, so the order of draws is free."""

    def __init__(self) -> None:
        self._drawn: Counter[int] = Counter()

    def __call__(self, size: int) -> bytes:
        self._drawn[size] += 1
        blocks = (sha256(f"{size}/{self._drawn[size]}/{block}".encode()).digest() for block in range(size // 32 + 1))
        return b"".join(blocks)[:size]


class Ids(IdGenerator):
    """Trace and span ids that count up."""

    def __init__(self) -> None:
        self._last = 0

    def generate_span_id(self) -> int:
        self._last += 1
        return self._last

    def generate_trace_id(self) -> int:
        return self.generate_span_id() << 64 | 1


class Spans(SpanProcessor):
    """Keeps ended spans."""

    def __init__(self) -> None:
        self.ended: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.ended.append(span)


ASKED: ContextVar[bool] = ContextVar("asked", default=False)
"""Set while a request is under way, and not in background tasks."""


class Levels(logging.Handler):
    """Keeps the levels of what requests log; texts may change, and background tasks log at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.names += [record.levelname] * ASKED.get()


@contextmanager
def held_still(*, traced: bool) -> Iterator[tuple[Spans, Levels]]:
    """Fix randomness, record the package's log, and set a new tracer provider or none.

    Two of the patched functions are the sources of `secrets`, `uuid` and `random.SystemRandom`; the third one names
    this process in tokens.
    """
    spans, levels, randomness, logger = Spans(), Levels(), Randomness(), logging.getLogger("mcp_sessions")
    provider = TracerProvider(id_generator=Ids(), resource=Resource.get_empty(), shutdown_on_exit=False)
    provider.add_span_processor(SessionSpanProcessor(aliases=[ALIAS]))
    provider.add_span_processor(spans)
    level = logger.level
    with ExitStack() as stack:
        stack.enter_context(patch.object(os, "urandom", randomness))
        stack.enter_context(patch.object(random, "_urandom", randomness))
        stack.enter_context(patch.object(runtime.Runtime, "boot", lambda _runtime: None))
        stack.enter_context(patch.object(trace, "_TRACER_PROVIDER", provider if traced else None))
        logger.addHandler(levels)
        logger.setLevel(logging.INFO)
        try:
            yield spans, levels
        finally:
            logger.removeHandler(levels)
            logger.setLevel(level)
