"""All contestants side by side: one row a contestant, one column an application and the way it is reached."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from .report import Table

# The heading, what the figure's name begins and ends with, and how it is shown.
COLUMNS: Final = (
    ("adds us", "trivial", "adds", "{:+.1f}"),
    ("in times of ours", "trivial", "times", "{:.2f}"),
    ("instructions", "instructions", "more", "{:+,.0f}"),
    ("SDK, JSON", "sdk-json", "throughput", "{:.2f}"),
    ("SDK, SSE", "sdk-sse", "throughput", "{:.2f}"),
    ("traced, adds us", "traced", "adds", "{:+.1f}"),
    ("traced, SDK", "traced-sdk", "throughput", "{:.2f}"),
)
CONTROLS: Final = ("pass-through,", "pass-through again")
_NOTE: Final = (
    "adds: to a request to a trivial application in process, over a pass-through; in times of ours: against the row "
    "`ours, session`; instructions: over a pass-through, too. The others are throughputs in parts of the bare "
    "server's; traced: with recorded spans."
)


def table(figures: Mapping[str, float]) -> Table:
    """Return what a run found; what it did not measure is left out, or stays empty."""
    rows = []
    for name in dict.fromkeys(figure.split("/")[1] for figure in figures):
        found = [(figures.get(f"{prefix}/{name}/{kind}"), shown) for _, prefix, kind, shown in COLUMNS]
        cells = ["" if value is None else shown.format(value) for value, shown in found]
        rows += [(name, *cells)] if any(cells) and not name.startswith(CONTROLS) else []
    return Table("Side by side", ("", *(heading for heading, *_ in COLUMNS)), rows, _NOTE)
