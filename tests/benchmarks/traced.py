"""With spans that are recorded: an OpenTelemetry SDK in the process that samples everything and exports nothing.

It has the span processor that the documentation asks for, which puts the session on the official SDK's spans, too.

A process has one tracer provider for its whole life, so this must be the last thing that a run times. Where the
middleware puts no session on any span, its rows are shown and no budget is read from them.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Final

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from starlette.types import ASGIApp

from mcp_sessions.telemetry import SessionSpanProcessor

from . import apps, lineup, ours
from .apps import PassThrough
from .lineup import ECHOED, NONE, PASS, Row
from .lonely import ALONE, SpanAlone
from .peers import PEERS
from .report import Report
from .size import Size
from .traffic import Visits, message

_OURS: Final = "ours, session"
_SESSION: Final = frozenset({"session.id", "mcp.session.id"})


class Counting(SpanProcessor):
    """Counts the spans that were recorded, and those that name a session."""

    def __init__(self) -> None:
        self.spans = 0
        self.named = 0

    def on_end(self, span: ReadableSpan) -> None:
        """One more."""
        self.spans += 1
        self.named += not _SESSION.isdisjoint(span.attributes or {})


@cache
def recording() -> Counting:
    """Record every span of this process from now on."""
    counting, provider = Counting(), TracerProvider()
    provider.add_span_processor(SessionSpanProcessor())
    provider.add_span_processor(counting)
    trace.set_tracer_provider(provider)
    return counting


async def traced(size: Size) -> Report:
    """Around both applications."""
    counting = recording()
    title = "With recorded spans, around a trivial application, in process"
    rows = [*_rows(apps.trivial, PASS), Row(ALONE, Visits.of(SpanAlone(apps.trivial), message()))]
    trivial = await _race(title, "traced", rows, (size.rounds, size.requests), counting)
    title = "With recorded spans, around the official SDK's server, in process"
    async with apps.started(apps.sdk(json_response=True)) as server:
        sdk = await _race(title, "traced-sdk", _rows(server, NONE), (size.rounds, size.sdk_requests), counting)
    return Report.all([trivial, sdk])


def _rows(app: ASGIApp, base: str) -> list[Row]:
    named = message(session={"sessionId": ours.minted(1)[0]})
    rows = [
        Row(NONE, Visits.of(app, named)),
        Row(PASS, Visits.of(PassThrough(app), named)),
        Row(_OURS, Visits.of(ours.wrap(app), named), ECHOED),
        *(Row(name, Visits.of(make(app), named)) for name, make in PEERS.items() if "Telemetry" in name),
    ]
    return [replace(row, base=base) for row in rows]


async def _race(title: str, prefix: str, rows: list[Row], times: tuple[int, int], counting: Counting) -> Report:
    spans, named = counting.spans, counting.named
    await next(row for row in rows if row.name == _OURS).visits.answer()
    spans, named = counting.spans - spans, counting.named - named
    note = f"A request in a session is {spans} recorded span(s) with us; {named} of them name(s) it."
    report = await lineup.run(
        title, prefix, rows, rounds=times[0], requests=times[1], note=note, machine=prefix == "traced"
    )
    figures = {name: figure for name, figure in report.figures.items() if named or _OURS not in name}
    return Report(report.tables, figures)
