"""The generated part of `docs/performance.md`: the last run's tables, and its plots."""

from __future__ import annotations

import os
import platform
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Final

from . import plots
from .report import Report, Table

DOCS: Final = Path(__file__).resolve().parents[2] / "docs"
PAGE: Final = "performance.md"
IMAGES: Final = "images"
BEGIN: Final = "<!-- begin: written by `python -m tests.benchmarks --write-docs` -->"
END: Final = "<!-- end -->"
NAMED: Final = ("mcp-sessions", "mcp", "starlette", "uvicorn", "msgspec", "pyjwt", "opentelemetry-sdk")
_ONLY_OURS: Final = ("pass-through", "none")


def write(report: Report, budget: Table, docs: Path = DOCS) -> None:
    """Replace the generated part by what a run found, and draw its plots."""
    page = docs / PAGE
    before, _, rest = page.read_text("utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    drawn = _plots(report)
    (docs / IMAGES).mkdir(exist_ok=True)
    for name, (svg, _) in drawn.items():
        (docs / IMAGES / f"{name}.svg").write_text(svg, "utf-8")
    images = [f"![{said}]({IMAGES}/{name}.svg)" for name, (_, said) in drawn.items()]
    parts = [_where(), budget.markdown(), *images, *(table.markdown() for table in report.tables)]
    generated = "\n\n".join((BEGIN, *parts, END))
    page.write_text(f"{before}{generated}{after}", "utf-8")


def _where() -> str:
    versions = ", ".join(f"{name} {version(name)}" for name in NAMED)
    python = f"{platform.python_implementation()} {platform.python_version()}"
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    return f"Measured on {datetime.now(timezone.utc).date()} with {python} ({machine}); {versions}."


def _plots(report: Report) -> dict[str, tuple[str, str]]:
    """The plots of which there are figures: SVG and a description by file name."""
    adds = _of(report, "trivial/", "/adds", without=_ONLY_OURS)
    left = _of(report, "sdk-json/", "/throughput", without=())
    drawn = {}
    if adds:
        title = "What a middleware adds to a request to a trivial application"
        drawn["performance-adds"] = (plots.bars(title, adds, unit="us", ours="ours"), title)
    if left:
        title = "Throughput of the official SDK's server, in per cent of the bare one"
        per_cent = {name: 100 * value for name, value in left.items()}
        drawn["performance-sdk"] = (plots.bars(title, per_cent, unit="%", ours="ours"), title)
    flat = {
        "sessions": _by_number(report, "sessions/", " sessions, no token cache/us"),
        "revocations": _by_number(report, "revocations/", " revocations/us"),
    }
    if all(flat.values()):
        title = "Cost of a request by live sessions (no token cache) and revocations"
        drawn["performance-scale"] = (plots.lines(title, flat, across="how many there are", up="us"), title)
    return drawn


def _of(report: Report, begin: str, end: str, *, without: tuple[str, ...]) -> dict[str, float]:
    found = {
        name.removeprefix(begin).removesuffix(end): value
        for name, value in report.figures.items()
        if name.startswith(begin) and name.endswith(end)
    }
    return {name: value for name, value in found.items() if not name.startswith(without)}


def _by_number(report: Report, begin: str, end: str) -> list[tuple[float, float]]:
    found = _of(report, begin, end, without=("pass",))
    return [(max(1.0, float(number.replace(",", ""))), value) for number, value in found.items()]
