"""The middleware and its peers around the trivial application, where costs stand out, and around the SDK's server."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial

import anyio
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from starlette.types import ASGIApp

from . import apps, ours, peers
from .apps import PassThrough
from .kinds import kinds
from .peers import PEERS
from .timing import ECHOED, NONE, PASS, PLAIN, Report, Row, Size, run
from .traffic import Visits, message


def trivial(size: Size) -> Report:
    """Race everything around the trivial application."""
    return anyio.run(_trivial, size)


async def _trivial(size: Size) -> Report:
    app, cookie, plain = apps.trivial, await peers.cookie(), message()
    named = message(session=await ours.created(ours.wrap(app)))
    rows = [
        Row(NONE, Visits.of(app, named)),
        Row(PASS, Visits.of(PassThrough(app), named)),
        Row(PLAIN, Visits.of(PassThrough(app), plain), base=PLAIN),
        *await kinds(),
        Row(peers.READ, Visits.of(peers.cookies(apps.cookie_reading), plain, headers=cookie), base=PLAIN),
        Row(peers.WRITE, Visits.of(peers.cookies(apps.cookie_writing), plain, headers=cookie), base=PLAIN),
        *(Row(name, Visits.of(make(app), named)) for name, make in PEERS.items()),
    ]
    title = "Around a trivial application, in process"
    return await run(title, rows, rounds=size.rounds, requests=size.requests)


def sdk_json(size: Size) -> Report:
    """Race around the SDK's server: the modern era, answers in JSON."""
    return anyio.run(partial(_sdk, size, modern=True))


def sdk_sse(size: Size) -> Report:
    """Race around the SDK's server: the legacy era, answers as event streams."""
    return anyio.run(partial(_sdk, size, modern=False))


async def _sdk(size: Size, *, modern: bool) -> Report:
    async with apps.started(apps.sdk(json_response=modern)) as server:
        app, plain = ours.wrap(server), message(modern=modern)
        named = message(session=await ours.created(app, modern=modern), modern=modern)
        rows = [
            *_around(server, named, modern=modern),
            Row("ours, no session", Visits.of(app, plain, modern=modern), base=NONE),
            Row("ours, session", Visits.of(app, named, modern=modern), ECHOED, NONE),
            Row(
                peers.READ,
                Visits.of(peers.cookies(server), plain, headers=await peers.cookie(), modern=modern),
                base=NONE,
            ),
            *(Row(name, Visits.of(make(server), named, modern=modern), base=NONE) for name, make in PEERS.items()),
        ]
        title = f"Around the official SDK's server, {'modern era, JSON' if modern else 'legacy era, SSE'}"
        return await run(title, rows, rounds=size.rounds, requests=size.sdk_requests)


def _around(server: ASGIApp, body: bytes, *, modern: bool = True) -> list[Row]:
    """Return the rows without a middleware; the second pass-through shows what is noise."""
    around: dict[str, ASGIApp] = {
        NONE: server,
        PASS: PassThrough(server),
        "pass-through again, as a control": PassThrough(server),
    }
    return [Row(name, Visits.of(app, body, modern=modern), base=NONE) for name, app in around.items()]


def traced(size: Size) -> Report:
    """Race with recorded spans around each kind of server, all with OpenTelemetry's HTTP instrumentation."""
    return anyio.run(_traced, size)


async def _traced(size: Size) -> Report:
    body = message(session=await ours.created(ours.wrap(apps.trivial)))
    provider = apps.record_spans()
    async with AsyncExitStack() as stack:
        rows = []
        for kind, make in apps.KINDS.items():
            server = await stack.enter_async_context(apps.started(make()))
            alone, with_sessions = (Visits.of(peers.instrumented(app), body) for app in (server, ours.wrap(server)))
            rows += [
                Row(f"{kind}, instrumented", alone, base=f"{kind}, instrumented"),
                Row(kind, with_sessions, ECHOED, f"{kind}, instrumented"),
            ]
        title = "With recorded spans and HTTP instrumentation"
        report = await run(title, rows, rounds=size.rounds, requests=size.sdk_requests)
        exported = InMemorySpanExporter()
        provider.add_span_processor(SimpleSpanProcessor(exported))
        sizes = []
        for row in rows:
            exported.clear()
            await row.visits.answer()
            spans = exported.get_finished_spans()
            sizes.append((f"{len(spans)}", f"{encode_spans(spans).ByteSize():,}"))
    cells = [(*row, *more) for row, more in zip(report.rows, sizes, strict=True)]
    return Report(report.title, (*report.columns, "spans", "bytes"), cells)
