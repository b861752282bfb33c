"""What a run writes into `docs/performance.md`: a table in microseconds, and its plot."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from datetime import datetime, timezone
from html import escape
from importlib.metadata import version
from pathlib import Path
from typing import Final

import generated

from .apps import KINDS
from .stores import STORES

COMMAND: Final = "python -m tests.benchmarks --write-docs trivial sdk-json sdk-sse stores traced"
PAGE: Final = "performance.md"
PLOT: Final = "images/performance-adds.svg"
SHOWN: Final[Mapping[str, str]] = {
    "ours, no session": "mcp-sessions, no session",
    "ours, session": "mcp-sessions, session",
    "ours, session, no token cache": "mcp-sessions, first request on a worker",
    "Starlette SessionMiddleware, read": "Starlette SessionMiddleware",
    "Starlette SessionMiddleware, read and write": "the same, reading and writing",
    "OpenTelemetry ASGI, default": "OpenTelemetry ASGI",
    "BaseHTTPMiddleware, empty": "BaseHTTPMiddleware, empty",
}
"""The rows for adopters, with the names that they are shown by."""
_TITLE: Final = "Processor time added to a request to a trivial application"
_WIDTH, _LABELS, _ROW = 520, 290, 26  # of the plot, in pixels


def write(figures: Mapping[str, float], run: str, docs: Path = generated.DOCS) -> None:
    """Replace the generated part of the page by what a run found, and draw the plot.

    Args:
        figures: What was found.
        run: Which run it was.
        docs: The folder of the documentation.
    """
    adds = {shown: figures.get(f"trivial/{name}/adds") for name, shown in SHOWN.items()}
    (docs / PLOT).write_text(_bars(_TITLE, {name: value for name, value in adds.items() if value is not None}), "utf-8")
    tables = [_middleware(figures), f"![{_TITLE}]({PLOT})", _stores(figures), _traced(figures), _where(run)]
    generated.replace(docs / PAGE, COMMAND, "\n\n".join(tables))


def _middleware(figures: Mapping[str, float]) -> str:
    columns = {"trivial/{}/adds": "{:,.0f} µs", "sdk-json/{}/throughput": "{:.0%}", "sdk-sse/{}/throughput": "{:.0%}"}
    rows = []
    for name, row in SHOWN.items():
        cells = ((figures.get(figure.format(name)), shown) for figure, shown in columns.items())
        rows.append((row, *("" if value is None else shown.format(value) for value, shown in cells)))
    return generated.table(("", "adds", "throughput of an SDK server, JSON", "SSE"), rows)


def _stores(figures: Mapping[str, float]) -> str:
    kinds = ("request", "tracked", "create", "delete")
    rows = []
    for name in STORES:
        pairs = [[figures.get(f"stores/{name}/{kind}/{part}", 0) for part in ("p50", "p99")] for kind in kinds]
        rows.append((f"`{name}`", *(f"{middle:,.0f} / {high:,.0f}" for middle, high in pairs)))
    head = ("p50 / p99, µs", "request", "with `tracked`", "`sessions/create`", "`sessions/delete`")
    return generated.table(head, rows)


def _traced(figures: Mapping[str, float]) -> str:
    columns = {"spans": "{:.0f}", "bytes": "{:,.0f}", "throughput": "{:.0%}"}
    cells = [
        [shown.format(figures.get(f"traced/{kind}/{part}", 0)) for part, shown in columns.items()] for kind in KINDS
    ]
    rows = [(kind, *row) for kind, row in zip(KINDS, cells, strict=True)]
    return generated.table(("traced", "spans a call", "bytes", "throughput of HTTP instrumentation alone"), rows)


def _where(run: str) -> str:
    day, names = datetime.now(timezone.utc).date(), ("mcp-sessions", "mcp", "starlette", "opentelemetry-sdk")
    versions = ", ".join(f"{name} {version(name)}" for name in names)
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    return f"Measured on {day} with CPython {platform.python_version()} ({machine}; {versions}): {run}."


def _bars(title: str, values: Mapping[str, float]) -> str:
    """Return a plot as SVG: one horizontal bar a value, in microseconds, longest at the bottom, ours in blue."""
    scale = (_WIDTH - _LABELS - 70) / max(*values.values(), 1.0)
    shapes = [_text(10, 24, title, 15)]
    for place, (name, value) in enumerate(sorted(values.items(), key=lambda item: item[1])):
        top, length = 42 + place * _ROW, max(value, 0) * scale
        colour = "#2b6cb0" if name.startswith("mcp-sessions") else "#a0aec0"
        shapes.append(_text(_LABELS - 8, top + 14, name, size=13, anchor="end"))
        shapes.append(f'<rect x="{_LABELS}" y="{top}" width="{length:.1f}" height="{_ROW - 8}" fill="{colour}"/>')
        shapes.append(_text(_LABELS + length + 6, top + 14, f"{value:,.0f} µs", size=13))
    box = f'viewBox="0 0 {_WIDTH} {50 + len(values) * _ROW}" font-family="sans-serif"'
    ground = '<rect width="100%" height="100%" fill="#ffffff"/>'  # pages may be dark
    return "\n".join((f'<svg xmlns="http://www.w3.org/2000/svg" {box}>', ground, *shapes, "</svg>\n"))


def _text(x: float, y: float, text: str, size: int = 12, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y}" font-size="{size}" text-anchor="{anchor}" fill="#1a202c">{escape(text)}</text>'
