"""The repository's public face works: workflows, the README on the package index, and what pages list and show."""

import ast
import os
import re
import subprocess
import sys
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import pytest
from browser import browsing
from environments import require
from pages import DOCS, ROOT, blocks, rows

require("readme-renderer")

import yaml
from readme_renderer import markdown

from mcp_sessions import Limits
from mcp_sessions._tokens.keyfile import key_source
from mcp_sessions.events import SessionEvent
from mcp_sessions.stores import MemoryStore, PostgresStore, RedisStore, SQLiteStore, Store
from mutants import MUTANTS, place_of

WORKFLOWS = sorted(ROOT.glob(".github/workflows/*.yml"))
MAKEFILE, README, SECURITY = (
    (ROOT / name).read_text("utf-8") for name in ("Makefile", "README.md", "docs/security.md")
)
COMMITTED = re.compile(
    r"https://(?:github|raw\.githubusercontent)\.com/mcp-sessions/mcp-sessions/(?:blob/)?main/([^#]+)"
)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_may_only_read(path: Path) -> None:
    """Unless a job asks for more; every action is pinned to a commit, and no checkout leaves a credential behind."""
    workflow = yaml.safe_load(path.read_text("utf-8"))
    assert workflow["permissions"] in ({}, {"contents": "read"})
    actions = [step for job in workflow["jobs"].values() for step in job.get("steps", []) if "uses" in step]
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", step["uses"]) for step in actions)
    checkouts = [step for step in actions if step["uses"].startswith("actions/checkout@")]
    assert all(step["with"] == {"persist-credentials": False} for step in checkouts)


def test_the_readme_can_be_shown_by_the_package_index() -> None:
    """It has no folder beside it there: every link is absolute, and leads to a file that exists."""
    shown = markdown.render(README)
    assert shown is not None
    links = re.findall(r'(?:href|src)="([^"]+)"', shown)
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    committed = [found[1] for found in map(COMMITTED.match, links) if found]
    assert committed
    assert [path for path in committed if not (ROOT / path).is_file()] == []


@pytest.mark.parametrize("target", ["demo", "test"])
def test_the_readme_names_the_two_commands_that_set_up_everything(target: str) -> None:
    """A newcomer with a clone needs no other page to see it work and to run its tests."""
    assert f"\n$ make {target} " in README
    assert re.search(rf"^{target}: setup", MAKEFILE, re.MULTILINE)


# --- the API page ----------------------------------------------------------------------------------

DOCUMENTED = re.findall(r"^\.\. auto\w+:: ([\w.]+)", (DOCS / "api.md").read_text("utf-8"), re.MULTILINE)
STORES = {MemoryStore, PostgresStore, RedisStore, SQLiteStore, Store}


def test_every_public_name_is_on_the_api_page() -> None:
    """Under its own or another one of the same object; so are stores and events, which have none in `mcp_sessions`."""
    found = [getattr(import_module(path.rpartition(".")[0]), path.rpartition(".")[2]) for path in DOCUMENTED]
    public = [*STORES, *get_args(SessionEvent)]
    names = "client errors events handles keys operator telemetry testing integrations.fastapi integrations.fastmcp"
    for name in ("", *(f".{name}" for name in names.split())):
        module = import_module(f"mcp_sessions{name}")
        public += [getattr(module, each) for each in module.__all__]
    assert [thing for thing in public if not any(thing is one for one in found)] == []


TABLES = """return [...document.querySelectorAll('.table-wrapper')]
  .filter(one => one.scrollWidth > one.clientWidth + 1).map(one => one.innerText)"""


@pytest.mark.nightly
def test_every_page_fits_a_phone(tmp_path: Path) -> None:
    """Neither a page nor a table in it has to be scrolled sideways."""
    subprocess.run([sys.executable, "-m", "sphinx", "-q", "-b", "html", DOCS, tmp_path], check=True)
    with browsing() as browser:
        browser.resize(390, 844)
        for page in sorted(tmp_path.glob("*.html")):
            browser.get(page.as_uri())
            assert browser.execute_script("return document.documentElement.scrollWidth") == 390, page.name
            assert browser.execute_script(TABLES) == [], page.name


# --- the security page -------------------------------------------------------------------------------


def test_every_defence_names_the_changes_that_remove_it() -> None:
    """And every change is named once: what has no row defends nothing, and a row without one is not proved."""
    named = [re.findall(r"`([a-z0-9-]+)`", row[-1]) for row in rows(SECURITY, "Defences")]
    assert all(named)
    assert sorted(name for row in named for name in row) == sorted(MUTANTS)
    assert len(MUTANTS) >= 60


@pytest.mark.parametrize("name", MUTANTS)
def test_a_change_can_be_applied(name: str) -> None:
    """Its old text is in one place, what comes of it is Python, and its tests are there."""
    mutant = MUTANTS[name]
    text = (ROOT / place_of(mutant)).read_text("utf-8")
    assert text.count(mutant.old) == 1
    ast.parse(text.replace(mutant.old, mutant.new))
    for path in mutant.tests.split():
        file, _, function = path.partition("::")
        assert f"def {function}" in (ROOT / "tests" / file).read_text("utf-8")


UNITS = {"KiB": 1024, "MiB": 1024**2, "s": 1}


def test_every_limit_has_a_row_with_its_default() -> None:
    """Every limit is on the page, except the timeouts of the store, which callers do not influence."""
    rows = re.findall(
        r"^\| [^|]+ \| ([^|]+) \| `([a-z_]+)` \|", SECURITY.partition("## Sizes and limits")[2], re.MULTILINE
    )
    shown: dict[str, float | None] = {}
    for default, name in rows:
        number, _, unit = default.replace(",", "").partition(" ")
        shown[name] = None if default == "no limit" else int(number) * UNITS.get(unit, 1)
    defaults = {field.name: field.default for field in fields(Limits) if not field.name.endswith("_timeout")}
    assert shown == {**defaults, "body_timeout": Limits().body_timeout}


def test_the_commands_make_and_roll_keys(tmp_path: Path) -> None:
    """The file is read as `[old]`, `[old, new]`, `[new, old]` and `[new]`, and keeps its mode."""
    program, keys, rings = tmp_path / "bin" / "mcp-sessions", tmp_path / "keys", list[list[Any]]()
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m mcp_sessions "$@"\n', "utf-8")
    program.chmod(0o755)
    environ = {**os.environ, "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"}
    for heading, mode in (("## Keys", 0o600), ("### Rotation", 0o640)):
        block, *_ = blocks(SECURITY.partition(f"\n{heading}\n")[2], "console")
        for line in block.splitlines():
            command = line.removeprefix("$ ")
            subprocess.run(["sh", "-ec", f"umask 022; {command}"], cwd=tmp_path, env=environ, check=True)
            assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir() if path.is_file()} == {mode}
            rings.append(list(key_source(f"file:{keys}")(0)._keys))
        keys.chmod(0o640)
    (old,), (new,) = rings[0], rings[-1]
    assert rings == [[old], [old], [old, new], [new, old], [new]]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bin", "keys"]
