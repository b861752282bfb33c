"""Everybody around the trivial application, and the pure core beside its limit: where costs stand out."""

from __future__ import annotations

from typing import Final

from starlette.types import ASGIApp

from . import anchors, apps, ours, peers
from .apps import PassThrough
from .core import Core, Limit
from .flat import OneFunction
from .lineup import ECHOED, HOW_TO_READ, NONE, PASS, PLAIN, Row, prove, run
from .peers import PEERS
from .report import Report
from .size import Size
from .timing import Repeated, race
from .traffic import Visits, message

CORE: Final = "core"
LIMIT: Final = "limit"
FLAT: Final = "ours, session, in one function"
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
    contestants = {**await anchors.contestants(), LIMIT: Repeated(limit), CORE: Repeated(core)}
    times = await race(contestants, rounds=1 + size.rounds // 5, requests=10 * size.requests)
    bases = dict.fromkeys((LIMIT, CORE), LIMIT)
    report = Report.of_race("The pure core, without ASGI", "core", times, bases=bases, note=_HOW_TO_READ_CORE)
    report.figures["core/machine"] = anchors.machine_factor(times)
    report.figures["core/limits"] = 1 / report.figures[f"core/{CORE}/throughput"]
    return report


async def trivial(size: Size) -> Report:
    """Everybody, around the trivial application."""
    app = ours.wrap(apps.trivial)
    plain, named = message(), message(session=await ours.created(app))
    cookie = await peers.cookie()
    naive = message(session={"sessionId": peers.encode()})
    rows = [
        Row(NONE, Visits.of(apps.trivial, named)),
        Row(PASS, Visits.of(PassThrough(apps.trivial), named)),
        Row(PLAIN, Visits.of(PassThrough(apps.trivial), plain), base=PLAIN),
        Row("ours, no session named", Visits.of(app, plain), base=PLAIN),
        Row("ours, session", Visits.of(app, named), ECHOED),
        Row(FLAT, Visits.of(OneFunction(app), named), ECHOED),
        await _used("ours, session, state changed", ours.wrap(apps.writing)),
        *[await _used(f"ours, session, {mode}", ours.wrap(apps.trivial, **how)) for mode, how in ours.MODES.items()],
        Row("ours, session created", _creations(app), b'"expiresAt"', base=PLAIN),
        Row("ours, forged session refused", Visits.of(app, _forgery(named)), b"-32043"),
        Row(peers.READ, Visits.of(peers.cookies(apps.cookie_reading), plain, headers=cookie), base=PLAIN),
        Row(peers.WRITE, Visits.of(peers.cookies(apps.cookie_writing), plain, headers=cookie), base=PLAIN),
        *(Row(name, Visits.of(make(apps.trivial), named)) for name, make in PEERS.items()),
        Row(peers.NAIVE, Visits.of(peers.Naive(apps.trivial), naive), ECHOED),
    ]
    note = f"Requests of {len(plain)} bytes without a session and {len(named)} with one. {HOW_TO_READ}"
    title = "Around a trivial application, in process"
    report = await run(title, "trivial", rows, rounds=size.rounds, requests=size.requests, note=note, machine=True)
    own = report.figures["trivial/ours, session/adds"]
    for key, peer in (("cookies", peers.READ), ("spans", peers.SPANS)):
        report.figures[f"trivial/cheaper/{key}"] = report.figures[f"trivial/{peer}/adds"] / own
    return report


async def _used(name: str, app: ASGIApp) -> Row:
    session = await ours.used(app, await ours.created(app))
    return Row(name, Visits.of(app, message(session=session)), ECHOED)


def _creations(app: ASGIApp) -> Visits:
    return Visits.of(app, message("sessions/create", {}), method="sessions/create")


def _forgery(named: bytes) -> bytes:
    """The same request with another last character but one in its session id."""
    end = named.index(b'"', named.index(b"sessionId") + len(b'sessionId":"')) - 2
    return named[:end] + (b"B" if named[end : end + 1] == b"A" else b"A") + named[end + 1 :]
