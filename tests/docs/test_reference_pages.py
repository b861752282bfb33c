"""Pages that list what the package has: its names, its requirements, and the states of a session."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import defaultdict
from importlib import import_module
from importlib.metadata import requires
from pathlib import Path
from typing import Any, get_args

import diagrams
import pytest
from environments import needs
from generated import DOCS
from lifecycle import LIVE, WAYS, names, ways
from packaging.requirements import Requirement

from mcp_sessions._session.events import SessionEvent
from mcp_sessions.stores._base import SessionStatus, Store
from mcp_sessions.stores._memory import MemoryStore
from mcp_sessions.stores._postgres import PostgresStore
from mcp_sessions.stores._redis import RedisStore
from mcp_sessions.stores._sqlite import SQLiteStore

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


ROWS = [
    line.strip("| ").split(" | ")
    for line in (DOCS / "dependencies.md").read_text("utf-8").splitlines()
    if line.startswith("| `")
]


CELLS = {row[0].strip("`"): row[1] for row in ROWS}


def asked_for() -> dict[str, set[str]]:
    """Return the requirements by extra; "" has those of the core."""
    found: dict[str, set[str]] = defaultdict(set)
    for text in requires("mcp-sessions") or ():
        requirement = Requirement(text)
        (extra,) = re.findall(r'extra == "(\w+)"', str(requirement.marker)) or [""]
        found[extra].add(requirement.name)
    return dict(found)


ASKED_FOR = asked_for()


def listed(cell: str) -> set[str]:
    """Return the names in a cell; one that begins with a hyphen continues the stem."""
    names = re.findall(r"`([\w-]+)`", cell)
    stem = "opentelemetry-instrumentation"
    return {stem + name if name.startswith("-") else name for name in names}


class TestAPIPage:
    """`docs/api.md` documents every public name."""

    @pytest.mark.parametrize("module", [pytest.param(name, marks=needs(what)) for name, what in MODULES.items()])
    def test_every_public_name_is_on_the_page(self, module: str) -> None:
        """Every public name is documented, under its own name or another one of the same object."""
        things = [found(path) for path in DOCUMENTED]
        public = import_module(module)
        missing = [name for name in public.__all__ if not any(getattr(public, name) is thing for thing in things)]
        assert missing == []

    def test_every_store_and_every_fact_is_on_the_page(self) -> None:
        """Stores and events are documented, though they have no name in `mcp_sessions`."""
        stores = {MemoryStore, PostgresStore, RedisStore, SQLiteStore, Store}
        assert stores | set(get_args(SessionEvent)) <= {
            thing for thing in map(found, DOCUMENTED) if isinstance(thing, type)
        }

    def test_every_name_has_one_entry(self) -> None:
        assert len(DOCUMENTED) == len(set(DOCUMENTED))


class TestDiagrams:
    """The diagrams are drawn from the code, and the life of a session is that of the decision table."""

    def test_the_committed_drawings_are_those_of_the_code(self, tmp_path: Path) -> None:
        """Rewrite them with `python tests/support/diagrams.py`."""
        subprocess.run([sys.executable, "tests/support/diagrams.py", str(tmp_path)], check=True, cwd=DOCS.parent)
        for name, drawn in diagrams.DIAGRAMS.items():
            file = f"{name}.svg"
            assert (DOCS / "images" / file).read_text("utf-8") == (tmp_path / file).read_text("utf-8") == drawn

    def test_every_drawing_is_on_a_page_and_legible_on_a_phone(self) -> None:
        """A drawing is not much wider than a phone, and well-formed."""
        shown = "".join(page.read_text("utf-8") for page in DOCS.glob("*.md"))
        for name, drawn in diagrams.DIAGRAMS.items():
            assert f"](images/{name}.svg)" in shown
            assert int(ET.fromstring(drawn).attrib["width"]) <= 480

    def test_every_standing_is_in_the_life_of_a_session(self) -> None:
        """It has every standing that a store can report."""
        assert {LIVE, *(standing.value for standing in WAYS)} == {standing.value for standing in SessionStatus}

    def test_a_session_that_is_over_stays_refused(self) -> None:
        """Nothing leads back to a live session, and only its owner learns the reason."""
        assert {after for _, after, _ in ways()} == {LIVE, "ended", "expired", "lost"}
        assert {before for before, _, _ in ways()} == {"[*]", LIVE}
        assert names() == {"ended": "-32043, reason ended", "expired": "-32043, reason expired", "lost": "-32043"}


class TestDependenciesPage:
    """`docs/dependencies.md` lists every requirement of the package, with reasons for those of the core."""

    @pytest.mark.parametrize("name", sorted(ASKED_FOR[""]))
    def test_a_core_requirement_has_its_reasons(self, name: str) -> None:
        """The row names the purpose, the choice, what it replaces, and the measured costs."""
        (row,) = (row for row in ROWS if row[0] == f"`{name}`" and len(row) == 6)
        assert all(row)
        assert all(float(cost) > 0 for cost in row[4:])

    @pytest.mark.parametrize("extra", sorted(set(ASKED_FOR) - {""}))
    def test_an_extra_is_listed_with_its_requirements(self, extra: str) -> None:
        """The row of an extra names exactly its requirements."""
        assert listed(CELLS[extra]) == ASKED_FOR[extra]
