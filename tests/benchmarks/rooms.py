"""Where the time of a request in a session goes, by the rooms of the package: the shares that a profiler finds.

A profiler makes each call dearer than it is, so rooms of many small functions look larger; the shares tell where to
look, and instruction counts tell what was gained.
"""

from __future__ import annotations

from cProfile import Profile
from pstats import Stats
from typing import Final

import mcp_sessions

from . import bodies, ours
from .children import ROOT
from .report import Report, Table
from .size import Size
from .traffic import Visits, message

_FOLDER: Final = mcp_sessions.__file__.removesuffix("__init__.py")
_HARNESS: Final = str(ROOT / "tests")
_LIBRARY: Final = "what they call"
_NOTE: Final = (
    "Around an application that answers without a look at the request, in process, under Python's profiler. calls: of "
    f"functions of the room, for one request. {_LIBRARY}: functions of other libraries, and built-in ones."
)


async def rooms(size: Size) -> Report:
    """A profile of what comes on top of the application."""
    app = ours.wrap(bodies.sink)
    visits = Visits.of(app, message(session=await ours.created(app)))
    requests = size.rounds * size.requests
    await visits.serve(requests // 4)
    profile = Profile()
    with profile:
        await visits.serve(requests)
    calls, times = _by_room(Stats(profile))
    whole = sum(times.values())
    most = sorted(times.items(), key=lambda item: item[1], reverse=True)[:15]
    rows = [(room, f"{calls[room] / requests:.0f}", f"{taken / whole:.0%}") for room, taken in most]
    figures = {f"rooms/{room}": taken / whole for room, taken in times.items()}
    return Report([Table("Where the time goes, by room", ("", "calls", "share"), rows, _NOTE)], figures)


def _by_room(stats: Stats) -> tuple[dict[str, int], dict[str, float]]:
    """How often functions of a room were called, and seconds spent in them alone."""
    calls: dict[str, int] = {}
    times: dict[str, float] = {}
    found: dict[tuple[str, int, str], tuple[int, int, float, float, object]] = stats.stats  # type: ignore[attr-defined]
    for (file, _, _), (_, count, own, _, _) in found.items():
        room = file.removeprefix(_FOLDER).removesuffix(".py") if file.startswith(_FOLDER) else _LIBRARY
        if not file.startswith(_HARNESS):
            calls[room] = calls.get(room, 0) + count
            times[room] = times.get(room, 0.0) + own
    return calls, times
