"""Pages that list what the package has: its names, its requirements, and the states of a session."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import defaultdict
from importlib import import_module
from importlib.metadata import requires
from pathlib import Path
from typing import Any, get_args

import generated
import pytest
from environments import needs
from generated import DOCS
from lifecycle_page import COMMAND, LIVE, PAGE, WAYS, names, picture, ways
from packaging.requirements import Requirement

from mcp_sessions._session.events import Fact
from mcp_sessions.stores.base import Standing, Store
from mcp_sessions.stores.memory import MemoryStore
from mcp_sessions.stores.postgres import PostgresStore
from mcp_sessions.stores.redis import RedisStore
from mcp_sessions.stores.sqlite import SQLiteStore

DOCUMENTED = re.findall(r"^\.\. auto\w+:: ([\w.]+)", (DOCS / "api.md").read_text("utf-8"), re.MULTILINE)


MODULES = {
    "mcp_sessions": "mcp-sessions",
    "mcp_sessions.client": "mcp-sessions",
    "mcp_sessions.telemetry": "mcp-sessions",
    "mcp_sessions.testing": "mcp-sessions",
    "mcp_sessions.integrations.fastapi": "fastapi",
    "mcp_sessions.integrations.fastmcp": "fastmcp",
    "mcp_sessions.integrations.sdk": "mcp",
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
        """Stores and facts are documented, though they have no name in `mcp_sessions`."""
        stores = {MemoryStore, PostgresStore, RedisStore, SQLiteStore, Store}
        assert stores | set(get_args(Fact)) <= {thing for thing in map(found, DOCUMENTED) if isinstance(thing, type)}

    def test_every_name_has_one_entry(self) -> None:
        assert len(DOCUMENTED) == len(set(DOCUMENTED))


class TestConceptsPage:
    """`docs/concepts.md` shows the life of a session as the code defines it."""

    def test_the_picture_is_generated_from_the_code(self, tmp_path: Path) -> None:
        """The picture is what `python tests/support/lifecycle_page.py` writes."""
        copy = tmp_path / "concepts.md"
        shutil.copy(PAGE, copy)
        subprocess.run([sys.executable, "tests/support/lifecycle_page.py", str(copy)], check=True, cwd=PAGE.parents[1])
        assert generated.part(PAGE, COMMAND) == generated.part(copy, COMMAND) == picture()

    def test_every_standing_is_in_the_picture(self) -> None:
        """The picture has every standing that a store can report."""
        assert {LIVE, *(standing.value for standing in WAYS)} == {standing.value for standing in Standing}

    def test_a_session_that_is_over_stays_refused(self) -> None:
        """Nothing leads back to a live session, and only its owner learns the reason."""
        assert {after for _, after, _ in ways()} == {LIVE, "ended", "expired", "lost"}
        assert {before for before, _, _ in ways()} == {"[*]", LIVE}
        assert names() == [
            'state "ended<br/>-32043, reason ended" as ended',
            'state "expired<br/>-32043, reason expired" as expired',
            'state "lost<br/>-32043" as lost',
        ]


class TestDependenciesPage:
    """`docs/dependencies.md` lists every requirement of the package, with reasons for those of the core."""

    @pytest.mark.parametrize("name", sorted(ASKED_FOR[""]))
    def test_a_core_requirement_has_its_reasons(self, name: str) -> None:
        """The row names the purpose, the choice, what it replaces, and the measured costs."""
        (row,) = (row for row in ROWS if row[0] == f"`{name}`" and len(row) == 6)
        assert all(row)
        assert all(float(cost) > 0 for cost in row[4:])

    @pytest.mark.parametrize("extra", sorted(set(ASKED_FOR) - {"", "dev"}))
    def test_an_extra_is_listed_with_its_requirements(self, extra: str) -> None:
        """The row of an extra names exactly its requirements."""
        assert listed(CELLS[extra]) == ASKED_FOR[extra]

    def test_the_development_extra_is_listed(self) -> None:
        """The row of `dev` names its requirements beside those of the other extras."""
        cell = CELLS["dev"]
        assert cell.startswith("all of these, ")
        others = set[str]().union(*(names for extra, names in ASKED_FOR.items() if extra not in {"", "dev"}))
        assert ASKED_FOR["dev"] == listed(cell) | others
