"""Calls of the package's own functions per request, and the files that they are in: how far a reader has to go.

Comprehensions and generators of an expression are no calls here: Python 3.12 and later inline most of them. A coroutine
counts once, however often it waits.
"""

import sys
from collections.abc import Mapping
from types import FrameType
from typing import Final, NamedTuple

from . import apps, ours
from .timing import Report
from .traffic import Visits, message

BUDGETS: Final = {"ours, no session": 52, "ours, session": 125}
"""Calls per request of the modern era, with an answer in JSON and a store in memory."""
PACKAGE: Final = "/middleware/mcp_sessions/"
WARM: Final = 3  # requests after which nothing is imported or set up any more


class Counted(NamedTuple):
    """What one request calls."""

    calls: int
    files: int


async def count() -> dict[str, Counted]:
    """Count the calls of one request of each kind."""
    app = ours.wrap(apps.trivial)
    bodies = {"ours, no session": message(), "ours, session": message(session=await ours.created(app))}
    return {name: await _count(Visits.of(app, body)) for name, body in bodies.items()}


async def _count(visits: Visits) -> Counted:
    frames = dict[int, FrameType]()  # kept until the end, so that no other one gets the id of one

    def note(frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if event == "call" and PACKAGE in code.co_filename and not code.co_name.startswith("<"):
            frames[id(frame)] = frame

    await visits.serve(WARM)
    sys.setprofile(note)
    await visits.serve(1)
    sys.setprofile(None)
    return Counted(len(frames), len({frame.f_code.co_filename for frame in frames.values()}))


def table(counts: Mapping[str, Counted]) -> Report:
    """Return the counts beside their budgets."""
    rows = [(name, f"{one.calls}", f"{BUDGETS[name]}", f"{one.files}") for name, one in counts.items()]
    return Report("Calls of our functions per request", ("", "counted", "budget", "files"), rows)


def faults(counts: Mapping[str, Counted]) -> list[str]:
    """Return what is over its budget."""
    over = [(name, counts[name].calls, most) for name, most in BUDGETS.items() if counts[name].calls > most]
    return [f"{name}: {calls} calls per request; at most {most} are allowed" for name, calls, most in over]
