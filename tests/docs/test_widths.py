"""The built pages in a real Chromium."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from browser import browsing

ROOT = Path(__file__).resolve().parent.parent.parent
TABLES = """return [...document.querySelectorAll('.table-wrapper')]
  .filter(one => one.scrollWidth > one.clientWidth + 1).map(one => one.innerText)"""


@pytest.mark.nightly
def test_every_page_fits_a_phone(tmp_path: Path) -> None:
    """Neither a page nor a table in it has to be scrolled sideways."""
    subprocess.run([sys.executable, "-m", "sphinx", "-q", "-b", "html", ROOT / "docs", tmp_path], check=True)
    with browsing() as browser:
        browser.resize(390, 844)
        for page in sorted(tmp_path.glob("*.html")):
            browser.open(page.as_uri())
            assert browser.run("return document.documentElement.scrollWidth") == 390, page.name
            assert browser.run(TABLES) == [], page.name
