"""The middleware around the trivial application and real servers, beside what others put there as they document it."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from statistics import median
from typing import Any, Final

from clients import SECRET
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from . import apps, ours
from .apps import PassThrough
from .timing import ECHOED, NONE, PASS, PLAIN, Report, Row, Size, race, run
from .traffic import Visits, message

READ: Final = "Starlette SessionMiddleware, read"
WRITE: Final = "Starlette SessionMiddleware, read and write"
RATIO_ROUNDS: Final = 61  # of the ratios in the gate, which are shown and not judged
_ONE: Final[dict[str, Any]] = {"exclude_spans": ["receive", "send"]}  # so that one is left


async def _do_nothing(request: Request, call_next: RequestResponseEndpoint) -> Response:
    return await call_next(request)


def _instrumented(app: ASGIApp, **options: Any) -> ASGIApp:
    """Put OpenTelemetry's HTTP instrumentation around an application, with a tracer provider of its own."""
    options = {"tracer_provider": TracerProvider(), "meter_provider": NoOpMeterProvider(), **options}
    wrapped: ASGIApp = OpenTelemetryMiddleware(app, **options)
    return wrapped


PEERS: Final[dict[str, Callable[[ASGIApp], ASGIApp]]] = {
    "BaseHTTPMiddleware, empty": lambda app: BaseHTTPMiddleware(app, _do_nothing),
    "OpenTelemetry ASGI, default": _instrumented,
    "OpenTelemetry ASGI, one span": lambda app: _instrumented(app, **_ONE),
}


def cookies(app: ASGIApp) -> ASGIApp:
    """Put Starlette's own sessions, in a signed cookie, around an application."""
    return SessionMiddleware(app, secret_key=SECRET)


async def cookie() -> dict[str, str]:
    """Return the header with which a client sends such a session back."""
    answer = await Visits.of(cookies(apps.cookie_writing), message()).answer()
    return {"cookie": answer.headers[b"set-cookie"].split(b";")[0].decode()}


async def trivial(size: Size) -> Report:
    """Race everything around the trivial application."""
    app, held, plain = apps.trivial, await cookie(), message()
    named = message(session=await ours.created(ours.wrap(app)))
    rows = [
        Row(NONE, Visits.of(app, named)),
        Row(PASS, Visits.of(PassThrough(app), named)),
        Row(PLAIN, Visits.of(PassThrough(app), plain), base=PLAIN),
        *await ours.kinds(),
        Row(READ, Visits.of(cookies(apps.cookie_reading), plain, headers=held), base=PLAIN),
        Row(WRITE, Visits.of(cookies(apps.cookie_writing), plain, headers=held), base=PLAIN),
        *(Row(name, Visits.of(make(app), named)) for name, make in PEERS.items()),
    ]
    title = "Around a trivial application, in process"
    return await run(title, rows, rounds=size.rounds, requests=size.requests)


async def ratios(size: Size) -> Report:
    """Return the time that the middleware adds, as a part of what Starlette's cookie session adds when it is read."""
    held, plain = await cookie(), message()
    named = message(session=await ours.created(ours.wrap(apps.trivial)))
    app = ours.wrap(apps.trivial)
    contestants = {
        PLAIN: Visits.of(PassThrough(apps.trivial), plain),
        PASS: Visits.of(PassThrough(apps.trivial), named),
        READ: Visits.of(cookies(apps.cookie_reading), plain, headers=held),
        "ours, no session": Visits.of(app, plain),
        "ours, session": Visits.of(app, named),
    }
    times = await race(contestants, rounds=min(size.rounds, RATIO_ROUNDS), requests=size.requests)
    rows = []
    for name, base in (("ours, no session", PLAIN), ("ours, session", PASS)):
        added = [mine - bare for mine, bare in zip(times[name], times[base], strict=True)]
        peers = [mine - bare for mine, bare in zip(times[READ], times[PLAIN], strict=True)]
        rows.append((name, f"{median(added) / median(peers):.2f}"))
    return Report("Time added, in times of what Starlette's SessionMiddleware adds reading", ("", "ratio"), rows)


async def sdk(size: Size, *, modern: bool) -> Report:
    """Race around the SDK's server: the modern era with answers in JSON, or the legacy one with event streams."""
    async with apps.started(apps.sdk(json_response=modern)) as server:
        app, plain = ours.wrap(server), message(modern=modern)
        named = message(session=await ours.created(app, modern=modern), modern=modern)
        rows = [
            *_around(server, named, modern=modern),
            Row("ours, no session", Visits.of(app, plain, modern=modern), base=NONE),
            Row("ours, session", Visits.of(app, named, modern=modern), ECHOED, NONE),
            Row(
                READ,
                Visits.of(cookies(server), plain, headers=await cookie(), modern=modern),
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


async def traced(size: Size) -> Report:
    """Race with recorded spans around each kind of server, all with OpenTelemetry's HTTP instrumentation."""
    body = message(session=await ours.created(ours.wrap(apps.trivial)))
    provider = apps.record_spans()
    async with AsyncExitStack() as stack:
        rows = []
        for kind, make in apps.KINDS.items():
            server = await stack.enter_async_context(apps.started(make()))
            around = (OpenTelemetryMiddleware(app, **_ONE) for app in (server, ours.wrap(server)))
            alone, with_sessions = (Visits.of(app, body) for app in around)
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
