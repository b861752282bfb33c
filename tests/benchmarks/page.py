"""The generated part of `docs/performance.md`: the last run's tables, and its plots."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Final

from . import plots, stateful
from .children import ROOT
from .report import Report, Table

DOCS: Final = Path(__file__).resolve().parents[2] / "docs"
PAGE: Final = "performance.md"
IMAGES: Final = "images"
BEGIN: Final = "<!-- begin: written by `python -m tests.benchmarks --write-docs` -->"
END: Final = "<!-- end -->"
NAMED: Final = ("mcp-sessions", "mcp", "starlette", "uvicorn", "msgspec", "pyjwt", "opentelemetry-sdk")
_ONLY_OURS: Final = ("pass-through", "none")


def write(report: Report, first: Sequence[Table], run: str, docs: Path = DOCS) -> None:
    """Replace the generated part by what a run found, and draw its plots.

    Args:
        report: What was found.
        first: The tables above the plots.
        run: Which run it was.
        docs: The folder of the documentation.
    """
    page = docs / PAGE
    before, _, old = page.read_text("utf-8").partition(BEGIN)
    _, _, after = old.partition(END)
    drawn = _plots(report)
    (docs / IMAGES).mkdir(exist_ok=True)
    for name, (svg, _) in drawn.items():
        (docs / IMAGES / f"{name}.svg").write_text(svg, "utf-8")
    images = [f"![{said}]({IMAGES}/{name}.svg)" for name, (_, said) in drawn.items()]
    tables, rest = ([table.markdown() for table in some] for some in (first, report.tables))
    parts = [_where(run), *tables, *images, *rest]
    generated = "\n\n".join((BEGIN, *parts, END))
    page.write_text(f"{before}{generated}{after}", "utf-8")


def _where(run: str) -> str:
    versions = ", ".join(f"{name} {version(name)}" for name in NAMED)
    python = f"{platform.python_implementation()} {platform.python_version()}"
    machine = f"{_processor()}, {platform.machine()}, {os.cpu_count()} cores"
    day = datetime.now(timezone.utc).date()
    return f"Measured on {day} at commit {_commit()} with {python} ({machine}; {versions}): {run}."


def _processor() -> str:
    """What the kernel calls it."""
    told = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        if line.startswith("model name")
    ]
    return "".join(told[:1])


def _commit() -> str:
    command = ["git", "describe", "--always"]
    done = subprocess.run(command, check=False, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return done.stdout.strip() or "none"


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
    held = {kind: _by_number(report, f"stateful/{kind}/", "/MiB") for kind in stateful.KINDS}
    worst = {kind: _by_number(report, f"stateful/{kind}/", "/worst") for kind in stateful.KINDS}
    if all(held.values()):
        title = "Memory of a worker by sessions: the SDK's own, and ours in front of its stateless server"
        drawn["performance-stateful"] = (plots.lines(title, held, across="sessions", up="MiB"), title)
        title = "The longest handshake by sessions: the SDK's own, and ours in front of its stateless server"
        drawn["performance-handshake"] = (plots.lines(title, worst, across="sessions", up="ms"), title)
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
