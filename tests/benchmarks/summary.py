"""Everybody and everything side by side: one row a contestant, one column an application and the way it is reached."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from . import ours, peers
from .lineup import NONE, PASS
from .report import Table

_OURS: Final = "ours, session"
ROWS: Final = (
    NONE,
    PASS,
    "ours, no session named",
    _OURS,
    *(f"{_OURS}, {mode}" for mode in ours.MODES),
    "ours, session, state changed",
    peers.READ,
    peers.WRITE,
    *peers.PEERS,
    peers.NAIVE,
)
# The heading, and where the figure stands.
COLUMNS: Final[Mapping[str, tuple[str, str]]] = {
    "adds us": ("trivial", "adds"),
    "in times of ours": ("trivial", "times"),
    "SDK, JSON": ("sdk-json", "throughput"),
    "SDK, SSE": ("sdk-sse", "throughput"),
    "HTTP, trivial": ("http-trivial", "throughput"),
    "HTTP, SDK": ("http-sdk", "throughput"),
    "traced, adds us": ("traced", "adds"),
    "traced, SDK": ("traced-sdk", "throughput"),
}
_NOTE: Final = (
    "adds: to a request to a trivial application in process, over a pass-through; in times of ours: against the row "
    f"`{_OURS}`. The others are throughputs in parts of the bare server's; traced: with recorded spans."
)
TITLE: Final = "Side by side"


def table(figures: Mapping[str, float]) -> Table:
    """What a run found; what it did not measure is left out, or stays empty."""
    own = figures.get(f"trivial/{_OURS}/adds", math.nan)
    adds = {name: figures[f"trivial/{name}/adds"] for name in ROWS if f"trivial/{name}/adds" in figures}
    known = {**figures, **{f"trivial/{name}/times": more / own for name, more in adds.items()}}
    rows = [
        (name, *(_cell(known.get(f"{prefix}/{name}/{kind}"), kind) for prefix, kind in COLUMNS.values()))
        for name in ROWS
    ]
    return Table(TITLE, ("", *COLUMNS), [row for row in rows if any(row[1:])], _NOTE)


def _cell(value: float | None, kind: str) -> str:
    if value is None:
        return ""
    return f"{value:+.1f}" if kind == "adds" else f"{value:.2f}"
