"""The testing page: its tests run as they are pasted, by pytest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from test_pages import Block, blocks

BLOCKS = [pytest.param(one, marks=one.needed, id=str(one)) for one in blocks("docs/testing.md")]


@pytest.mark.parametrize("block", BLOCKS)
def test_the_tests_on_the_page_pass(block: Block, tmp_path: Path) -> None:
    """In a file of their own, in a folder without settings."""
    (tmp_path / "test_pasted.py").write_text(block.code, "utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_pasted.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout
    assert "passed" in ran.stdout
