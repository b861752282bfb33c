"""Everybody around the official SDK's server, in both eras: what is left of its throughput."""

from __future__ import annotations

from typing import Any, Final

from starlette.types import ASGIApp

from . import apps, ours, peers
from .apps import PassThrough
from .lineup import ECHOED, NONE, PASS, Row, run
from .peers import PEERS
from .report import Report
from .size import Size
from .traffic import Visits, message

_HOW_TO_READ_SDK: Final = "adds and throughput: against the bare server. The control shows what is noise."


async def modern_json(size: Size) -> Report:
    """The modern era, answers in JSON."""
    async with apps.started(apps.sdk(json_response=True)) as server:
        return await _sdk(server, "Around the official SDK's server, modern era, JSON", "sdk-json", size, modern=True)


async def legacy_sse(size: Size) -> Report:
    """The legacy era, answers as event streams."""
    async with apps.started(apps.sdk(json_response=False)) as server:
        return await _sdk(server, "Around the official SDK's server, legacy era, SSE", "sdk-sse", size, modern=False)


async def _sdk(server: ASGIApp, title: str, prefix: str, size: Size, *, modern: bool) -> Report:
    app = ours.wrap(server)
    plain = message(modern=modern)
    named = message(session=await ours.created(app, modern=modern), modern=modern)
    control = "pass-through again, as a control"

    def visits(app: ASGIApp, body: bytes, **scoped: Any) -> Visits:
        return Visits.of(app, body, modern=modern, **scoped)

    rows = [
        Row(NONE, visits(server, named), base=NONE),
        Row(PASS, visits(PassThrough(server), named), base=NONE),
        Row(control, visits(PassThrough(server), named), base=NONE),
        Row("ours, no session named", visits(app, plain), base=NONE),
        Row("ours, session", visits(app, named), ECHOED, base=NONE),
        *[await _mode(mode, ours.wrap(server, **options), modern=modern) for mode, options in ours.MODES.items()],
        Row(peers.READ, visits(peers.cookies(server), plain, headers=await peers.cookie()), base=NONE),
        *(Row(name, visits(make(server), named), base=NONE) for name, make in PEERS.items()),
    ]
    return await run(title, prefix, rows, rounds=size.rounds, requests=size.sdk_requests, note=_HOW_TO_READ_SDK)


async def _mode(mode: str, app: ASGIApp, *, modern: bool) -> Row:
    named = message(session=await ours.created(app, modern=modern), modern=modern)
    return Row(f"ours, session, {mode}", Visits.of(app, named, modern=modern), ECHOED, base=NONE)
