"""Everybody around the trivial application, and the pure core beside its limit: where costs stand out."""

from __future__ import annotations

from typing import Any, Final

from starlette.types import ASGIApp

from . import apps, ours, peers
from .anchors import ANCHORS, machine_factor
from .apps import PassThrough
from .core import Core, Limit
from .lineup import ECHOED, HOW_TO_READ, NONE, PASS, PLAIN, Row, prove, run
from .peers import PEERS
from .report import Report
from .size import Size
from .timing import Repeated, race
from .traffic import Visits, message

COOKIES: Final = "Starlette SessionMiddleware, read"
SPANS: Final = "OpenTelemetry ASGI, default"
CORE: Final = "core"
LIMIT: Final = "limit"
_HOW_TO_READ_CORE: Final = (
    "core: parse, verify from cache, decide, splice. limit: a bare HMAC, a search and a concatenation, with no check "
    "of anything. adds and throughput: against the limit."
)


async def pure_core(size: Size) -> Report:
    """The core beside its limit."""
    core = Core()
    limit = Limit(core)
    for name, function in ((CORE, core), (LIMIT, limit)):
        prove(name, function(), ECHOED)
    contestants = {**ANCHORS, LIMIT: Repeated(limit), CORE: Repeated(core)}
    times = await race(contestants, rounds=size.rounds, requests=10 * size.requests)
    bases = dict.fromkeys(contestants, LIMIT)
    report = Report.of_race("The pure core, without ASGI", "core", times, bases=bases, note=_HOW_TO_READ_CORE)
    report.figures["core/machine"] = machine_factor(times)
    report.figures["core/limits"] = 1 / report.figures[f"core/{CORE}/throughput"]
    return report


MODES: Final[dict[str, tuple[ASGIApp, dict[str, Any]]]] = {
    "ours, session, no token cache": (apps.trivial, {"token_cache": 0}),
    "ours, session, state changed": (apps.writing, {}),
    "ours, session, idle_timeout": (apps.trivial, {"idle_timeout": 3600}),
    "ours, session, tracked": (apps.trivial, {"tracked": True}),
}
"""The middleware's modes: around which application, with which options. One whose option is not there is left out."""


async def trivial(size: Size) -> Report:
    """Everybody, around the trivial application."""
    app = ours.wrap(apps.trivial)
    plain, named = message(), message(session=await ours.created(app))
    naive = message(session={"sessionId": peers.encode()})
    rows = [
        Row(NONE, Visits.of(apps.trivial, named)),
        Row(PASS, Visits.of(PassThrough(apps.trivial), named)),
        Row(PLAIN, Visits.of(PassThrough(apps.trivial), plain), base=PLAIN),
        Row("ours, no session named", Visits.of(app, plain), base=PLAIN),
        Row("ours, session", Visits.of(app, named), ECHOED),
        *[await _mode(name) for name, (_, options) in MODES.items() if options.keys() <= ours.OPTIONS],
        Row("ours, session created", _creations(app), b'"expiresAt"', base=PLAIN),
        Row("ours, forged session refused", Visits.of(app, _forgery(named)), b"-32043"),
        *await _cookies(),
        *(Row(name, Visits.of(make(apps.trivial), named)) for name, make in PEERS.items()),
        Row("naive PyJWT and json", Visits.of(peers.Naive(apps.trivial), naive), ECHOED),
    ]
    note = f"Requests of {len(plain)} bytes without a session and {len(named)} with one. {HOW_TO_READ}"
    title = "Around a trivial application, in process"
    report = await run(title, "trivial", rows, rounds=size.rounds, requests=size.requests, note=note)
    own = report.figures["trivial/ours, session/adds"]
    for key, peer in (("cookies", COOKIES), ("spans", SPANS)):
        report.figures[f"trivial/cheaper/{key}"] = report.figures[f"trivial/{peer}/adds"] / own
    return report


async def _mode(name: str) -> Row:
    inner, options = MODES[name]
    app = ours.wrap(inner, **options)
    session = await ours.used(app, await ours.created(app))
    return Row(name, Visits.of(app, message(session=session)), ECHOED)


def _creations(app: ASGIApp) -> Visits:
    return Visits.of(app, message("sessions/create", {}), method="sessions/create")


def _forgery(named: bytes) -> bytes:
    """The same request with another last character but one in its session id."""
    end = named.index(b'"', named.index(b"sessionId") + len(b'sessionId":"')) - 2
    return named[:end] + (b"B" if named[end : end + 1] == b"A" else b"A") + named[end + 1 :]


async def _cookies() -> list[Row]:
    reading, writing = peers.cookies(apps.cookie_reading), peers.cookies(apps.cookie_writing)
    set_cookie = (await Visits.of(writing, message()).answer()).headers[b"set-cookie"]
    headers = {"cookie": set_cookie.split(b";")[0].decode()}
    return [
        Row(COOKIES, Visits.of(reading, message(), headers=headers), base=PLAIN),
        Row("Starlette SessionMiddleware, read and write", Visits.of(writing, message(), headers=headers), base=PLAIN),
    ]
