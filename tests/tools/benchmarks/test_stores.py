"""The benchmark of the stores runs, and its table has a row for each."""

from __future__ import annotations

import subprocess
import sys

import pytest

from . import stores
from .children import ROOT


def test_every_store_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """Times, none of them judged here; what one entry weighs cannot be seen from a handful."""
    stores.main(["--entries", "1", "40"])
    _, _, *rows = capsys.readouterr().out.splitlines()
    table = [row.strip("| ").split(" | ") for row in rows]
    assert [row[:2] for row in table] == [[f"`{name}`", number] for name in stores.STORES for number in ("1", "40")]
    assert all(row[2:4] == ["-", "-"] for row in table)
    assert all(float(time.replace(",", "")) > 0 for row in table for time in row[4:])


def test_what_an_entry_weighs_is_seen_from_many() -> None:
    """A record takes more than a revocation. As a command."""
    command = [sys.executable, "-m", "tests.tools.benchmarks.stores", "--entries", "1000", "--store", "memory:"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    row = done.stdout.splitlines()[-1].strip("| ").split(" | ")
    assert 0 < int(row[2]) < int(row[3])
