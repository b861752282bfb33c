"""`docs/dependencies.md` lists every requirement of the package, with reasons for those of the core."""

from __future__ import annotations

import re
from collections import defaultdict
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

PAGE = (Path(__file__).resolve().parent.parent.parent / "docs" / "dependencies.md").read_text("utf-8")
ROWS = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| `")]
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


@pytest.mark.parametrize("name", sorted(ASKED_FOR[""]))
def test_a_core_requirement_has_its_reasons(name: str) -> None:
    """The row names the purpose, the choice, what it replaces, and the measured costs."""
    (row,) = (row for row in ROWS if row[0] == f"`{name}`" and len(row) == 6)
    assert all(row)
    assert all(float(cost) > 0 for cost in row[4:])


@pytest.mark.parametrize("extra", sorted(set(ASKED_FOR) - {"", "dev"}))
def test_an_extra_is_listed_with_its_requirements(extra: str) -> None:
    """The row of an extra names exactly its requirements."""
    assert listed(CELLS[extra]) == ASKED_FOR[extra]


def test_the_development_extra_is_listed() -> None:
    """The row of `dev` names its requirements beside those of the other extras."""
    cell = CELLS["dev"]
    assert cell.startswith("all of these, ")
    others = set[str]().union(*(names for extra, names in ASKED_FOR.items() if extra not in {"", "dev"}))
    assert ASKED_FOR["dev"] == listed(cell) | others
