"""Running the official conformance suite against a URL, and reading its records.

The suite is an npm package of a fixed version with a Node of its own, checked by its hashes. A failed check is a
result like any other.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import anyio

from integration import javascript

PACKAGES: Final = Path(__file__).parent / "npm"
NAME: Final = "@modelcontextprotocol/conformance"
VERSION: Final[str] = json.loads((PACKAGES / "package.json").read_text("utf-8"))["dependencies"][NAME]
SETS: Final = ("2025-11-25", "2026-07-28")
DEADLINE: Final = 180  # seconds for one requirement set
_RECORD: Final = re.compile(r"server-(.+)-\d{4}-\d\d-\d\dT.*")
_STATUSES: Final = frozenset({"SUCCESS", "FAILURE", "WARNING", "SKIPPED"})  # others are the suite's own notes


@dataclass(frozen=True)
class Outcome:
    """The outcome of one scenario: each check with its status, in a fixed order."""

    checks: tuple[tuple[str, str], ...]

    @property
    def passed(self) -> int:
        return sum(status == "SUCCESS" for _, status in self.checks)

    @property
    def failed(self) -> int:
        """The number of failed checks and warnings."""
        return sum(status in {"FAILURE", "WARNING"} for _, status in self.checks)

    def __str__(self) -> str:
        if not self.passed + self.failed:
            return "skipped"
        return f"{self.passed} of {self.passed + self.failed}"


async def run(url: str, requirements: str) -> Mapping[str, Outcome]:
    """Run a requirement set, such as `"2025-11-25"`, and return the outcome of each scenario in order."""
    folder = javascript.packages(PACKAGES)
    path = f"{folder / 'node_modules' / '.bin'}{os.pathsep}{os.environ['PATH']}"
    with tempfile.TemporaryDirectory() as records, anyio.fail_after(DEADLINE):
        command = ["conformance", "server", "--url", url, "--requirements", requirements, "--output-dir", records]
        done = await anyio.run_process(command, check=False, cwd=records, env={**os.environ, "PATH": path})
        found = read(Path(records))
    assert found, done.stdout.decode()[-2000:]
    return found


def read(records: Path) -> Mapping[str, Outcome]:
    """Read every scenario's outcome from the folders that the suite left."""
    by_time = sorted(records.glob("server-*/checks.json"), key=lambda record: record.parent.stat().st_mtime_ns)
    found = {}
    for record in by_time:
        named = _RECORD.fullmatch(record.parent.name)
        assert named is not None, record
        found[named[1]] = _outcome(json.loads(record.read_text("utf-8")))
    return found


def _outcome(checks: list[dict[str, Any]]) -> Outcome:
    return Outcome(tuple(sorted((check["id"], check["status"]) for check in checks if check["status"] in _STATUSES)))
