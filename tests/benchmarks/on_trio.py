"""On trio instead of asyncio: both applications in process, without us and with us."""

from __future__ import annotations

from starlette.types import ASGIApp

from . import apps, lineup, ours
from .apps import PassThrough
from .lineup import ECHOED, PASS, Row
from .report import Report
from .size import Size
from .traffic import Visits, message


async def on_trio(size: Size) -> Report:
    """The section, which a run starts on trio."""
    trivial = await _race("a trivial application", "trio", apps.trivial, size.rounds, size.requests)
    async with apps.started(apps.sdk(json_response=True)) as server:
        sdk = await _race("the official SDK's server", "trio-sdk", server, size.rounds, size.sdk_requests)
    return Report.all([trivial, sdk])


async def _race(title: str, prefix: str, app: ASGIApp, rounds: int, requests: int) -> Report:
    named = message(session={"sessionId": ours.minted(1)[0]})
    rows = [
        Row(PASS, Visits.of(PassThrough(app), named)),
        Row("ours, session", Visits.of(ours.wrap(app), named), ECHOED),
    ]
    return await lineup.run(f"On trio, around {title}, in process", prefix, rows, rounds=rounds, requests=requests)
