"""The generated part of `docs/performance.md`: the last run's tables, and its plot."""

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

from .children import ROOT
from .report import Report, Table

DOCS: Final = ROOT / "docs"
PAGE: Final = "performance.md"
BEGIN: Final = "<!-- begin: written by `python -m tests.tools.benchmarks --write-docs` -->"
END: Final = "<!-- end -->"
PLOT: Final = "images/performance-adds.svg"
_TITLE: Final = "What a middleware adds to a request to a trivial application"
_NAMED: Final = ("mcp-sessions", "mcp", "starlette", "uvicorn", "msgspec", "pyjwt", "opentelemetry-sdk")
_ADDS: Final = re.compile(r"trivial/((?!pass-through|none).+)/adds")
_WIDTH, _LABELS, _ROW = 760, 300, 26  # of the plot, in pixels


def write(report: Report, first: Sequence[Table], run: str, docs: Path = DOCS) -> None:
    """Replace the generated part by what a run found, and draw the plot.

    Args:
        report: What was found.
        first: The tables above the plot.
        run: Which run it was.
        docs: The folder of the documentation.
    """
    page = docs / PAGE
    before, _, old = page.read_text("utf-8").partition(BEGIN)
    _, _, after = old.partition(END)
    adds = {found[1]: value for name, value in report.figures.items() if (found := _ADDS.fullmatch(name))}
    if adds:
        (docs / PLOT).parent.mkdir(exist_ok=True)
        (docs / PLOT).write_text(bars(_TITLE, adds), "utf-8")
    above, below = ([table.markdown() for table in some] for some in (first, report.tables))
    parts = (BEGIN, _where(run), *above, f"![{_TITLE}]({PLOT})", *below, END)
    page.write_text(before + "\n\n".join(parts) + after, "utf-8")


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
    scale = (_WIDTH - _LABELS - 90) / max(*values.values(), 1.0)
    shapes = [_text(10, 24, title, 15)]
    for place, (name, value) in enumerate(sorted(values.items(), key=lambda item: item[1])):
        top, length = 42 + place * _ROW, max(value, 0) * scale
        colour = "#2b6cb0" if name.startswith("ours") else "#a0aec0"
        shapes.append(_text(_LABELS - 8, top + 14, name, anchor="end"))
        shapes.append(f'<rect x="{_LABELS}" y="{top}" width="{length:.1f}" height="{_ROW - 8}" fill="{colour}"/>')
        shapes.append(_text(_LABELS + length + 6, top + 14, f"{value:,.0f} us"))
    box = f'viewBox="0 0 {_WIDTH} {50 + len(values) * _ROW}" font-family="sans-serif"'
    ground = '<rect width="100%" height="100%" fill="#ffffff"/>'  # pages may be dark
    return "\n".join((f'<svg xmlns="http://www.w3.org/2000/svg" {box}>', ground, *shapes, "</svg>\n"))


def _text(x: float, y: float, text: str, size: int = 12, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y}" font-size="{size}" text-anchor="{anchor}" fill="#1a202c">{escape(text)}</text>'
