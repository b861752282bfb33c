"""The benchmark of the stores runs, and its table has a row for each."""

from __future__ import annotations

import pytest

from . import stores


def test_every_store_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """Bytes and times, none of them judged here."""
    stores.main(["--entries", "5"])
    _, _, *rows = capsys.readouterr().out.splitlines()
    assert [row.split(" | ")[0] for row in rows] == [f"| `{name}`" for name in stores.STORES]
    assert all(float(cell.replace(",", "")) >= 0 for row in rows for cell in row.strip("| ").split(" | ")[3:])
