"""Everybody and everything side by side: one row a contestant, one column an application and the way it is reached."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from . import instructions, ours, peers
from .lineup import NONE, PASS
from .lonely import ALONE
from .report import Table

_OURS: Final = "ours, session"
_CORE: Final = "ours, the pure core alone"
_NAMES: Final = {"core": _CORE, ALONE: ALONE}  # of what is counted, where it is not all of ours
ROWS: Final = (
    NONE,
    PASS,
    "ours, no session named",
    _OURS,
    *(f"{_OURS}, {mode}" for mode in ours.MODES),
    "ours, session, state changed",
    f"{_OURS}, in one function",
    f"{_OURS}, traced",
    ALONE,
    _CORE,
    peers.READ,
    peers.WRITE,
    *peers.PEERS,
    peers.NAIVE,
)
# The heading, and where the figure stands.
COLUMNS: Final[Mapping[str, tuple[str, str]]] = {
    "adds us": ("trivial", "adds"),
    "in times of ours": ("trivial", "times"),
    "instructions": ("instructions", "more"),
    "SDK, JSON": ("sdk-json", "throughput"),
    "SDK, SSE": ("sdk-sse", "throughput"),
    "HTTP, trivial": ("http-trivial", "throughput"),
    "HTTP, SDK": ("http-sdk", "throughput"),
    "traced, adds us": ("traced", "adds"),
    "traced, SDK": ("traced-sdk", "throughput"),
}
_NOTE: Final = (
    "adds: to a request to a trivial application in process, over a pass-through; in times of ours: against the row "
    f"`{_OURS}`; instructions: over a pass-through, too. The others are throughputs in parts of the bare server's; "
    "traced: with recorded spans."
)
TITLE: Final = "Side by side"
_FORMATS: Final = {"adds": "{:+.1f}", "times": "{:.2f}", "throughput": "{:.2f}", "more": "{:+,.0f}"}
_COUNTED: Final = "instructions/"


def table(figures: Mapping[str, float]) -> Table:
    """What a run found; what it did not measure is left out, or stays empty."""
    own = figures.get(f"trivial/{_OURS}/adds", math.nan)
    adds = {name: figures[f"trivial/{name}/adds"] for name in ROWS if f"trivial/{name}/adds" in figures}
    known = {
        **figures,
        **{f"trivial/{name}/times": more / own for name, more in adds.items()},
        **_instructions(figures),
        **{f"trivial/{_CORE}/adds": figures[name] for name in ("core/core/us",) if name in figures},
    }
    rows = [
        (name, *(_cell(known.get(f"{prefix}/{name}/{kind}"), kind) for prefix, kind in COLUMNS.values()))
        for name in ROWS
    ]
    return Table(TITLE, ("", *COLUMNS), [row for row in rows if any(row[1:])], _NOTE)


def _instructions(figures: Mapping[str, float]) -> dict[str, float]:
    """Of the rows whose instructions were counted, beyond the pass-through's."""
    counts = {name.removeprefix(_COUNTED): int(more) for name, more in figures.items() if name.startswith(_COUNTED)}
    more = instructions.beyond(counts) if counts else {}
    return {f"{_COUNTED}{_NAMES.get(name, f'ours, {name}')}/more": value for name, value in more.items()}


def _cell(value: float | None, kind: str) -> str:
    if value is None:
        return ""
    return _FORMATS[kind].format(value)
