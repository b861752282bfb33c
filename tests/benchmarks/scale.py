"""Many sessions, many revocations, and tokens by the flood: what a request costs then, and what a worker holds."""

from __future__ import annotations

import random
import time
from typing import Final

from starlette.types import ASGIApp

from mcp_sessions.stores.memory import MemoryStore

from . import apps, lineup, ours
from .lineup import ECHOED, PASS, Row
from .memory import held
from .report import Report, Table
from .size import Size
from .traffic import Visits, message

REFUSED: Final = b"-32043"


async def sessions(size: Size) -> Report:
    """Requests spread evenly over ever more live sessions."""
    ids = ours.minted(size.sessions[-1])
    rows = [Row(PASS, Visits.in_sessions(apps.PassThrough(apps.trivial), ids[:1]))]
    for number in size.sessions:
        cached, uncached = ours.wrap(apps.trivial), ours.wrap(apps.trivial, token_cache=0)
        rows.append(Row(f"{number:,} sessions, no token cache", Visits.in_sessions(uncached, ids[:number]), ECHOED))
        rows.append(Row(f"{number:,} sessions", Visits.in_sessions(cached, ids[:number]), ECHOED))
    title = "ActiveSession sessions, each named as often as the others"
    report = await lineup.run(title, "sessions", rows, rounds=size.rounds, requests=size.requests)
    return _with_flatness(report, "sessions", [f"{number:,} sessions, no token cache" for number in size.sessions])


async def revocations(size: Size) -> Report:
    """The same live session beside ever more ended ones, in the memory store."""
    rows = [Row(PASS, Visits.in_sessions(apps.PassThrough(apps.trivial), ours.minted(1)))]
    for number in size.revocations:
        app = ours.wrap(apps.trivial, store=await _store_of(number))
        rows.append(Row(f"{number:,} revocations", Visits.in_sessions(app, ours.minted(1)), ECHOED))
    title = "Revocations in the memory store"
    report = await lineup.run(title, "revocations", rows, rounds=size.rounds, requests=size.requests)
    return _with_flatness(report, "revocations", [f"{number:,} revocations" for number in size.revocations])


def _with_flatness(report: Report, prefix: str, names: list[str]) -> Report:
    first, *_, last = (report.figures[f"{prefix}/{name}/us"] for name in names)
    report.figures[f"{prefix}/flatness"] = last / first
    return report


async def _store_of(number: int) -> MemoryStore:
    store, now = MemoryStore(max_entries=number + 1), int(time.time())
    ends = random.Random(number)
    for place in range(number):
        end = now + ends.randrange(ours.WEEK)
        await store.revoke(f"ses_{place:024}", audience=ours.NAMES, expires_at=end, reason="deleted", lease=0)
    return store


# --- floods --------------------------------------------------------------------------------------


async def floods(size: Size) -> Report:
    """Tokens that nobody has seen before: good ones, forged ones, and texts that are too long to be one."""
    ids = ours.minted(size.flood)
    long = message(session={"sessionId": "x" * 100_000})
    large = message(params={"name": "echo", "arguments": {"text": "x" * 100_000}}, session={"sessionId": ids[0]})
    app = ours.wrap(apps.trivial)
    rows = [
        Row(PASS, Visits.in_sessions(apps.PassThrough(apps.trivial), ids[:1])),
        Row("one session, known", Visits.in_sessions(app, ids[:1]), ECHOED),
        Row("valid, each for the first time", Visits.in_sessions(app, ids), ECHOED),
        Row("forged, each for the first time", Visits.in_sessions(app, list(map(ours.forged, ids))), REFUSED),
        Row("pass-through, 100,000 bytes more", Visits.of(apps.PassThrough(apps.trivial), long)),
        Row(
            "one session, known, 100,000 bytes more", Visits.of(app, large), ECHOED, "pass-through, 100,000 bytes more"
        ),
        Row("1,000 bytes instead of a token", Visits.of(app, message(session={"sessionId": "x" * 1000})), REFUSED),
        Row("100,000 bytes instead of a token", Visits.of(app, long), REFUSED, "pass-through, 100,000 bytes more"),
    ]
    report = await lineup.run("Floods of tokens", "floods", rows, rounds=size.rounds, requests=size.requests)
    valid = report.figures["floods/valid, each for the first time/us"]
    report.figures["floods/forged to valid"] = report.figures["floods/forged, each for the first time/us"] / valid
    report.figures["floods/long to valid"] = report.figures["floods/1,000 bytes instead of a token/us"] / valid
    return report


# --- memory --------------------------------------------------------------------------------------


async def memory(size: Size) -> Report:
    """What a worker holds. Each flood comes twice, since whatever is bounded is full after the first."""
    ids, half = ours.minted(size.flood), size.flood // 2
    forged = list(map(ours.forged, ids))
    entries = size.flood // 4
    cached, uncached = ours.wrap(apps.trivial, token_cache=entries), ours.wrap(apps.trivial, token_cache=0)
    live = await _held_after(uncached, ids[:half], ids[half:])
    false = await _held_after(cached, forged[:half], forged[half:])
    kept = await _held_after(cached, ids[:half], ids[half:])
    with held() as revoked:
        _store = await _store_of(size.revocations[-1])
    figures = {
        "memory/live session": (live[1] - live[0]) / half,
        "memory/forged token": (false[1] - false[0]) / half,
        "memory/cached token": kept[0] / entries,
        "memory/cache growth": kept[1] / kept[0],
        "memory/revocation": revoked.after / size.revocations[-1],
    }
    rows = [(name, f"{figures[f'memory/{key}']:,.1f}") for key, name in _MEMORY.items()]
    return Report([Table("Memory of a worker", ("", "bytes"), rows)], figures)


_MEMORY: Final = {
    "live session": "a live session, token cache off",
    "forged token": "a forged token",
    "cached token": "a token in the cache",
    "cache growth": "the cache after a second flood, in times of what it was after the first",
    "revocation": "a revocation in the memory store",
}


async def _held_after(app: ASGIApp, *floods: list[str]) -> list[int]:
    """Bytes that are held after each flood."""
    levels = []
    with held() as level:
        for ids in floods:
            await Visits.in_sessions(app, ids).serve(len(ids))
            levels.append(level.now())
    return levels
