"""Measure what each dependency costs, and print the table of `docs/dependencies.md`.

Run with `.venv/bin/python docs/measure_dependencies.py`. Each import is timed in fresh interpreters, in processor time,
with all that it imports in turn; the package itself is timed after its dependencies. Sizes are what a distribution's
own files take on disk, without what it depends on. Nothing here is timed in a test.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import distribution
from pathlib import Path

ROUNDS = 15
MODULES = {
    "anyio": "anyio",
    "asgiref": "asgiref.typing",
    "cryptography": "cryptography.hazmat.primitives.ciphers.aead",
    "msgspec": "msgspec",
    "opentelemetry-api": "opentelemetry.trace",
    "pyjwt": "jwt",
    "starlette": "starlette.routing",
}
PACKAGE = Path(__file__).resolve().parent.parent / "middleware" / "mcp_sessions"


def import_milliseconds(module: str, *, after: str = "sys") -> float:
    """The median processor time that an import takes in a fresh interpreter in which `after` is there already."""
    program = f"import {after}; from time import process_time as t; a = t(); import {module}; print((t() - a) * 1000)"
    command = [sys.executable, "-c", program]
    times = [float(subprocess.run(command, capture_output=True, check=True).stdout) for _ in range(ROUNDS)]
    return statistics.median(times)


def megabytes(files: Iterable[Path]) -> float:
    """What files take on disk, leaving out compiled ones."""
    return sum(file.stat().st_size for file in files if file.is_file() and file.suffix != ".pyc") / 1e6


def main() -> None:
    """Print one line for each dependency, for all together, and for the package itself."""
    print(f"Python {sys.version.split()[0]}\n")
    print(f"{'distribution':20} {'version':>10} {'MB':>6} {'ms':>6}  imported as")
    for name, module in MODULES.items():
        there = distribution(name)
        size = megabytes(Path(str(file.locate())) for file in there.files or ())
        print(f"{name:20} {there.version:>10} {size:6.2f} {import_milliseconds(module):6.1f}  {module}")
    everything = ", ".join(MODULES.values())
    size, own = megabytes(PACKAGE.rglob("*")), import_milliseconds("mcp_sessions", after=everything)
    print(f"{'all of them':20} {'':10} {'':6} {import_milliseconds(everything):6.1f}")
    print(f"{'mcp-sessions':20} {distribution('mcp-sessions').version:>10} {size:6.2f} {own:6.1f}  after all of them")


if __name__ == "__main__":
    main()
