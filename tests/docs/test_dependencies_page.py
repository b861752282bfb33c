"""`docs/dependencies.md` names what is asked for, each in its place: whoever adds a dependency has to give a reason."""

from __future__ import annotations

import re
from collections import defaultdict
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

PAGE = (Path(__file__).resolve().parent.parent.parent / "docs" / "dependencies.md").read_text("utf-8")
ROWS = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| `")]
SAID = {row[0].strip("`"): row[1] for row in ROWS}


def asked_for() -> dict[str, set[str]]:
    """What the package asks for, by extra; "" is what it always needs."""
    found: dict[str, set[str]] = defaultdict(set)
    for text in requires("mcp-sessions") or ():
        requirement = Requirement(text)
        (extra,) = re.findall(r'extra == "(\w+)"', str(requirement.marker)) or [""]
        found[extra].add(requirement.name)
    return dict(found)


ASKED_FOR = asked_for()


def listed(said: str) -> set[str]:
    """The names in a cell; one that begins with a hyphen goes on from the last one."""
    names = re.findall(r"`([\w-]+)`", said)
    stem = "opentelemetry-instrumentation"
    return {stem + name if name.startswith("-") else name for name in names}


@pytest.mark.parametrize("name", sorted(ASKED_FOR[""]))
def test_what_is_always_installed_has_its_reasons(name: str) -> None:
    """What for, why this one, what it replaces, and what it costs, measured."""
    (row,) = (row for row in ROWS if row[0] == f"`{name}`" and len(row) == 6)
    assert all(row)
    assert all(float(cost) > 0 for cost in row[4:])


@pytest.mark.parametrize("extra", sorted(set(ASKED_FOR) - {"", "dev"}))
def test_an_extra_is_listed_with_what_it_brings(extra: str) -> None:
    """Neither more nor less."""
    assert listed(SAID[extra]) == ASKED_FOR[extra]


def test_what_work_on_the_repository_needs_is_listed() -> None:
    """All that the other extras bring, and the rest by name."""
    said = SAID["dev"]
    assert said.startswith("all of these, ")
    others = set[str]().union(*(names for extra, names in ASKED_FOR.items() if extra not in {"", "dev"}))
    assert ASKED_FOR["dev"] == listed(said) | others
