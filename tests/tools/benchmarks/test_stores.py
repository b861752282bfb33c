"""The benchmark of the stores runs, and its table has a row for each."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from . import burst, command, load, ours, stores, tenants
from .children import ROOT


def test_every_store_is_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Times, none of them judged here; what one entry weighs cannot be seen from a handful."""
    monkeypatch.setattr(stores, "ASKED", 5)
    monkeypatch.setattr(stores, "AT_ONCE", 5)
    stores.main(["--entries", "8"])
    _, _, *rows = capsys.readouterr().out.splitlines()
    table = [row.strip("| ").split(" | ") for row in rows]
    assert [row[:2] for row in table] == [[f"`{name}`", "8"] for name in stores.STORES]
    assert all(row[2:4] == ["-", "-"] for row in table)
    assert all(float(time.replace(",", "")) > 0 for row in table for time in row[4:])


def test_what_an_entry_weighs_is_seen_from_many() -> None:
    """A record takes more than a revocation. As a command."""
    command = [sys.executable, "-m", "tests.tools.benchmarks.stores", "--entries", "1000", "--store", "memory:"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    row = done.stdout.splitlines()[-1].strip("| ").split(" | ")
    assert 0 < int(row[2]) < int(row[3])


def test_a_store_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    """One row for each number of workers; what is swept is swept once."""
    load.main(["--store", "redis://", "--workers", "2", "--seconds", "0.2", "--sessions", "30"])
    row = capsys.readouterr().out.splitlines()[-1].strip("| ").split(" | ")
    assert row[:2] + row[4:6] == ["`redis://`", "2", "0", "30"]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_write_that_is_not_acknowledged_has_failed(tmp_path: Path) -> None:
    """It took no time that counts."""
    (tmp_path / "sessions.db").mkdir()
    store = ours.store(f"sqlite:{tmp_path}/sessions.db/more", timeout=1)
    (tmp_path / "sessions.db").rmdir()
    writer = burst.Writer(store, 0)
    await writer.write(1)
    assert writer.sent == burst.Sent([], 1, [])


def test_bursts_lose_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Of two workers, and a row for each figure; no time is judged."""
    small = ["--workers", "2", "--writes", "8", "--seconds", "1", "--sessions", "100"]
    burst.main(small)
    rows = [row.strip("| ").split(" | ") for row in capsys.readouterr().out.splitlines()]
    assert [row[4] for row in rows[2:4]] == ["0 lost, 0 doubled"] * 2
    assert [row[0] for row in rows[5:]] == ["`sqlite:`", *["`memory:`"] * 6, *["`sqlite:`"] * 6]


def test_one_tenant_s_crowd_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """In this process, and as a row of a store's own; no time is judged."""
    row = asyncio.run(tenants.measured("memory:", 300, 0.2))
    assert (row[0], len(row)) == ("150", len(tenants.COLUMNS) - 1)
    tenants.main(["--store", "sqlite:PATH", "--sessions", "300", "--seconds", "0.2"])
    assert capsys.readouterr().out.splitlines()[-1].startswith("| `sqlite:PATH` | 150 |")


def test_the_stores_are_a_section_of_the_benchmarks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which is not run with all others, since it takes minutes; beside others it comes first."""
    ran: list[list[str]] = []
    for each in (burst, load, tenants):
        monkeypatch.setattr(each, "main", ran.append)
    assert command.main(["stores"]) == 0
    assert command.main(["stores", "import", "--size", "tiny"]) == 0
    assert (ran[:3], [*map(bool, ran[3:])]) == ([[], [], []], [True] * 3)
    assert "In all" in capsys.readouterr().out
