"""The middleware and its peers around the trivial application, where costs stand out, and around the SDK's server."""

from __future__ import annotations

from typing import Final

from starlette.types import ASGIApp

from . import apps, ours, peers
from .apps import PassThrough
from .kinds import in_mode, kinds
from .peers import PEERS
from .report import Report
from .size import Size
from .timing import ECHOED, HOW_TO_READ, NONE, PASS, PLAIN, Row, run
from .traffic import Visits, message

_SDK_NOTE: Final = "adds and throughput: against the bare server. The control shows what is noise."


async def trivial(size: Size) -> Report:
    """Race everything around the trivial application."""
    app, cookie = apps.trivial, await peers.cookie()
    plain, named = message(), message(session=await ours.created(ours.wrap(app)))
    rows = [
        Row(NONE, Visits.of(app, named)),
        Row(PASS, Visits.of(PassThrough(app), named)),
        Row(PLAIN, Visits.of(PassThrough(app), plain), base=PLAIN),
        *await kinds(),
        Row(peers.READ, Visits.of(peers.cookies(apps.cookie_reading), plain, headers=cookie), base=PLAIN),
        Row(peers.WRITE, Visits.of(peers.cookies(apps.cookie_writing), plain, headers=cookie), base=PLAIN),
        *(Row(name, Visits.of(make(app), named)) for name, make in PEERS.items()),
        Row(peers.NAIVE, Visits.of(peers.Naive(app), message(session={"sessionId": peers.TOKEN})), ECHOED),
    ]
    note = f"Requests of {len(plain)} bytes without a session and {len(named)} with one. {HOW_TO_READ}"
    title = "Around a trivial application, in process"
    report = await run(title, "trivial", rows, rounds=size.rounds, requests=size.requests, note=note)
    own = report.figures["trivial/ours, session/adds"]
    for row in rows:
        report.figures[f"trivial/{row.name}/times"] = report.figures[f"trivial/{row.name}/adds"] / own
    return report


async def modern_json(size: Size) -> Report:
    """Race around the SDK's server: the modern era, answers in JSON."""
    async with apps.started(apps.sdk(json_response=True)) as server:
        return await _sdk(server, "Around the official SDK's server, modern era, JSON", "sdk-json", size, modern=True)


async def legacy_sse(size: Size) -> Report:
    """Race around the SDK's server: the legacy era, answers as event streams."""
    async with apps.started(apps.sdk(json_response=False)) as server:
        return await _sdk(server, "Around the official SDK's server, legacy era, SSE", "sdk-sse", size, modern=False)


async def _sdk(server: ASGIApp, title: str, prefix: str, size: Size, modern: bool) -> Report:
    app, plain = ours.wrap(server), message(modern=modern)
    named = message(session=await ours.created(app, modern=modern), modern=modern)
    around: dict[str, ASGIApp] = {NONE: server, PASS: PassThrough(server)}
    around["pass-through again, as a control"] = around[PASS]
    rows = [
        *(Row(name, Visits.of(each, named, modern=modern)) for name, each in around.items()),
        Row("ours, no session named", Visits.of(app, plain, modern=modern)),
        Row("ours, session", Visits.of(app, named, modern=modern), ECHOED),
        *[await in_mode(mode, server, modern=modern) for mode in ours.MODES],
        Row(peers.READ, Visits.of(peers.cookies(server), plain, headers=await peers.cookie(), modern=modern)),
        *(Row(name, Visits.of(make(server), named, modern=modern)) for name, make in PEERS.items()),
    ]
    rows = [Row(row.name, row.visits, row.proof, NONE) for row in rows]
    return await run(title, prefix, rows, rounds=size.rounds, requests=size.sdk_requests, note=_SDK_NOTE)
