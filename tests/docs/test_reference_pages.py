"""Pages that list what the package has: its names, its requirements and its drawings; and all pages in a browser."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from importlib import import_module
from importlib.metadata import requires
from pathlib import Path
from typing import Any, get_args

import pytest
from browser import browsing
from environments import needs
from packaging.requirements import Requirement

from mcp_sessions import SessionEvent
from mcp_sessions.stores import MemoryStore, PostgresStore, RedisStore, SQLiteStore, Store

DOCS = Path(__file__).resolve().parents[2] / "docs"
DOCUMENTED = re.findall(r"^\.\. auto\w+:: ([\w.]+)", (DOCS / "api.md").read_text("utf-8"), re.MULTILINE)
MODULES = {
    "mcp_sessions": "mcp-sessions",
    "mcp_sessions.client": "mcp-sessions",
    "mcp_sessions.telemetry": "mcp-sessions",
    "mcp_sessions.testing": "mcp-sessions",
    "mcp_sessions.integrations.fastapi": "fastapi",
    "mcp_sessions.integrations.fastmcp": "fastmcp",
}
"""The modules from which users import, each with the distribution that it needs."""


def found(path: str) -> Any:
    """Import what a full name names."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


@pytest.mark.parametrize("module", [pytest.param(name, marks=needs(what)) for name, what in MODULES.items()])
def test_every_public_name_is_on_the_api_page(module: str) -> None:
    """It is documented once, under its own name or another one of the same object."""
    things = [found(path) for path in DOCUMENTED]
    public = import_module(module)
    assert [name for name in public.__all__ if not any(getattr(public, name) is thing for thing in things)] == []
    assert len(DOCUMENTED) == len(set(DOCUMENTED))


def test_every_store_and_every_event_is_on_the_api_page() -> None:
    """They have no name in `mcp_sessions`."""
    stores = {MemoryStore, PostgresStore, RedisStore, SQLiteStore, Store}
    assert stores | set(get_args(SessionEvent)) <= {
        thing for thing in map(found, DOCUMENTED) if isinstance(thing, type)
    }


def test_contributing_names_every_requirement_of_the_core() -> None:
    """Each with its purpose, and what it stands in place of."""
    page = (DOCS.parent / "CONTRIBUTING.md").read_text("utf-8").partition("### Dependencies")[2]
    needed = [Requirement(text) for text in requires("mcp-sessions") or ()]
    assert set(re.findall(r"^\| `([\w-]+)` \| .+ \| .+ \|$", page, re.MULTILINE)) == {
        one.name for one in needed if one.marker is None
    }


@pytest.mark.parametrize("drawing", sorted(DOCS.glob("images/*.svg")), ids=lambda path: path.stem)
def test_a_drawing_is_on_a_page_and_fits_a_phone(drawing: Any) -> None:
    """One that no page shows was forgotten; a wider one cannot be read."""
    assert f"](images/{drawing.name})" in "".join(page.read_text("utf-8") for page in DOCS.glob("*.md"))
    assert int(ET.fromstring(drawing.read_text("utf-8")).attrib.get("width", 480)) <= 480


TABLES = """return [...document.querySelectorAll('.table-wrapper')]
  .filter(one => one.scrollWidth > one.clientWidth + 1).map(one => one.innerText)"""


@pytest.mark.nightly
def test_every_page_fits_a_phone(tmp_path: Path) -> None:
    """Neither a page nor a table in it has to be scrolled sideways."""
    subprocess.run([sys.executable, "-m", "sphinx", "-q", "-b", "html", DOCS, tmp_path], check=True)
    with browsing() as browser:
        browser.resize(390, 844)
        for page in sorted(tmp_path.glob("*.html")):
            browser.open(page.as_uri())
            assert browser.run("return document.documentElement.scrollWidth") == 390, page.name
            assert browser.run(TABLES) == [], page.name
