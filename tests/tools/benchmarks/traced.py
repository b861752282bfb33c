"""With spans that are recorded: an OpenTelemetry SDK in the process that samples everything and exports nothing.

It has the span processor that the documentation asks for, which puts the session on the official SDK's spans, too.
A process has one tracer provider for its whole life, so this must be the last thing that a run times.
"""

from __future__ import annotations

from functools import cache

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from starlette.types import ASGIApp

from mcp_sessions.telemetry import SessionSpanProcessor

from . import apps, ours
from .apps import PassThrough
from .peers import PEERS
from .report import Report
from .size import Size
from .timing import ECHOED, NONE, PASS, Row, run
from .traffic import Visits, message


class Counting(SpanProcessor):
    """Counts the recorded spans that name a session."""

    named = 0

    def on_end(self, span: ReadableSpan) -> None:
        """Count one more."""
        self.named += "session.id" in (span.attributes or {})


@cache
def recording() -> Counting:
    """Record every span of this process from now on."""
    counting, provider = Counting(), TracerProvider()
    provider.add_span_processor(SessionSpanProcessor())
    provider.add_span_processor(counting)
    trace.set_tracer_provider(provider)
    return counting


async def traced(size: Size) -> Report:
    """Race around both applications."""
    trivial = await _race("a trivial application", "traced", apps.trivial, PASS, (size.rounds, size.requests))
    async with apps.started(apps.sdk(json_response=True)) as app:
        counts = (size.rounds, size.sdk_requests)
        sdk = await _race("the official SDK's server", "traced-sdk", app, NONE, counts)
    return Report.all([trivial, sdk])


async def _race(name: str, prefix: str, app: ASGIApp, base: str, counts: tuple[int, int]) -> Report:
    before, named = recording().named, message(session=await ours.unnamed())
    session = Visits.of(ours.wrap(app), named)
    await session.answer()
    assert recording().named > before, "the span of a request in a session names the session"
    bare: dict[str, ASGIApp] = {NONE: app, PASS: PassThrough(app)}
    around = {**bare, **{name: make(app) for name, make in PEERS.items() if "Telemetry" in name}}
    rows = [Row(name, Visits.of(each, named), base=base) for name, each in around.items()]
    rows.insert(2, Row("ours, session", session, ECHOED, base))
    title = f"With recorded spans, around {name}, in process"
    return await run(title, prefix, rows, rounds=counts[0], requests=counts[1])
