"""What the last run writes into the documentation: the adopters' table and plot, and the full report."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from html import escape
from importlib.metadata import version
from pathlib import Path
from typing import Final

import generated

from .children import ROOT
from .report import Report, Table

COMMAND: Final = "python -m tests.tools.benchmarks --write-docs"
PAGE: Final = "project/benchmarks.md"
SHORT: Final = "performance.md"
PLOT: Final = "images/performance-adds.svg"
SHOWN: Final[Mapping[str, str]] = {
    "ours, no session named": "mcp-sessions, no session",
    "ours, session": "mcp-sessions, session",
    "ours, session, no token cache": "mcp-sessions, new to the worker",
    "Starlette SessionMiddleware, read": "Starlette SessionMiddleware",
    "OpenTelemetry ASGI, default": "OpenTelemetry ASGI",
    "BaseHTTPMiddleware, empty": "BaseHTTPMiddleware, empty",
}
"""The rows for adopters, with the names that they are shown by."""
_TITLE: Final = "Processor time added to a request to a trivial application"
_NAMED: Final = ("mcp-sessions", "mcp", "starlette", "uvicorn", "msgspec", "pyjwt", "opentelemetry-sdk")
_WIDTH, _LABELS, _ROW = 480, 250, 26  # of the plot, in pixels


def write(report: Report, first: Sequence[Table], run: str, docs: Path = generated.DOCS) -> None:
    """Replace the generated parts of both pages by what a run found, and draw the plot.

    Args:
        report: What was found.
        first: The tables at the top of the report.
        run: Which run it was.
        docs: The folder of the documentation.
    """
    where, tables = _where(run), (table.markdown() for table in (*first, *report.tables))
    generated.replace(docs / PAGE, COMMAND, "\n\n".join((where, *tables)))
    adds = {shown: report.figures.get(f"trivial/{name}/adds") for name, shown in SHOWN.items()}
    found = {shown: value for shown, value in adds.items() if value is not None}
    if found:
        (docs / PLOT).parent.mkdir(exist_ok=True)
        (docs / PLOT).write_text(bars(_TITLE, found), "utf-8")
        generated.replace(docs / SHORT, COMMAND, f"{summary(report.figures)}\n\n![{_TITLE}]({PLOT})\n\n{where}")


def summary(figures: Mapping[str, float]) -> str:
    """Return the adopters' table."""
    columns = {"trivial/{}/adds": "{:,.0f} us", "sdk-json/{}/throughput": "{:.0%}", "sdk-sse/{}/throughput": "{:.0%}"}
    rows = []
    for name, row in SHOWN.items():
        cells = ((figures.get(figure.format(name)), shown) for figure, shown in columns.items())
        rows.append((row, *("" if value is None else shown.format(value) for value, shown in cells)))
    return generated.table(("", "adds", "throughput of an SDK server, JSON", "SSE"), rows)


def _where(run: str) -> str:
    day, versions = datetime.now(timezone.utc).date(), ", ".join(f"{name} {version(name)}" for name in _NAMED)
    command = ["git", "describe", "--always"]
    commit = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True).stdout.strip() or "none"
    python = f"{platform.python_implementation()} {platform.python_version()}"
    processors = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text("utf-8"))
    machine = ", ".join((*processors[:1], platform.machine(), f"{os.cpu_count()} cores"))
    return f"Measured on {day} at commit {commit} with {python} ({machine}; {versions}): {run}."


def bars(title: str, values: Mapping[str, float]) -> str:
    """Return a plot as SVG: one horizontal bar a value, in microseconds, longest at the bottom, ours in blue."""
    scale = (_WIDTH - _LABELS - 70) / max(*values.values(), 1.0)
    shapes = [_text(10, 24, title, 15)]
    for place, (name, value) in enumerate(sorted(values.items(), key=lambda item: item[1])):
        top, length = 42 + place * _ROW, max(value, 0) * scale
        colour = "#2b6cb0" if name.startswith("mcp-sessions") else "#a0aec0"
        shapes.append(_text(_LABELS - 8, top + 14, name, size=13, anchor="end"))
        shapes.append(f'<rect x="{_LABELS}" y="{top}" width="{length:.1f}" height="{_ROW - 8}" fill="{colour}"/>')
        shapes.append(_text(_LABELS + length + 6, top + 14, f"{value:,.0f} us", size=13))
    box = f'viewBox="0 0 {_WIDTH} {50 + len(values) * _ROW}" font-family="sans-serif"'
    ground = '<rect width="100%" height="100%" fill="#ffffff"/>'  # pages may be dark
    return "\n".join((f'<svg xmlns="http://www.w3.org/2000/svg" {box}>', ground, *shapes, "</svg>\n"))


def _text(x: float, y: float, text: str, size: int = 12, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y}" font-size="{size}" text-anchor="{anchor}" fill="#1a202c">{escape(text)}</text>'
