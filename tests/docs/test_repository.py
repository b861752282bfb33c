"""The repository's public face works: workflows, the README on the package index, and what pages list and show."""

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import pytest
from browser import browsing
from environments import INSTALLED, needs, require
from pages import DOCS, ROOT

require("readme-renderer")

import yaml
from readme_renderer import markdown

from mcp_sessions import SessionEvent
from mcp_sessions.stores import MemoryStore, PostgresStore, RedisStore, SQLiteStore, Store

WORKFLOWS = sorted(ROOT.glob(".github/workflows/*.yml"))
MAKEFILE, README = ((ROOT / name).read_text("utf-8") for name in ("Makefile", "README.md"))
COMMITTED = re.compile(
    r"https://(?:github|raw\.githubusercontent)\.com/mcp-sessions/mcp-sessions/(?:blob/)?main/([^#]+)"
)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_calls_targets_that_exist_and_may_only_read(path: Path) -> None:
    """Unless a job asks for more; every action is pinned to a commit, and no checkout leaves a credential behind."""
    workflow = yaml.safe_load(path.read_text("utf-8"))
    steps = [step for job in workflow["jobs"].values() for step in job.get("steps", [])]
    commands = "\n".join(step.get("run", "") for step in steps)
    called = {target for words in re.findall(r"^make ([a-z -]+)", commands, re.MULTILINE) for target in words.split()}
    assert called <= {*re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE)}
    assert called or path.stem == "release"
    assert workflow["permissions"] in ({}, {"contents": "read"})
    actions = [step for step in steps if "uses" in step]
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", step["uses"]) for step in actions)
    checkouts = [step for step in actions if step["uses"].startswith("actions/checkout@")]
    assert all(step["with"] == {"persist-credentials": False} for step in checkouts)
    if path.stem == "tests":  # on every supported Python
        project = (ROOT / "pyproject.toml").read_text("utf-8")
        tested = workflow["jobs"]["suite"]["strategy"]["matrix"]["python"]
        assert tested == re.findall(r'"Programming Language :: Python :: (3\.\d+)"', project)


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


def test_the_newest_entry_of_the_changelog_is_this_version() -> None:
    """Once there is a release, its entry has the package's version and a date; what is not released stands above it."""
    entries = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert entries.pop(0) == "[Unreleased]"
    version = re.escape(INSTALLED["mcp-sessions"])
    assert entries == [] or re.fullmatch(rf"\[{version}\] - \d{{4}}-\d\d-\d\d", entries[0])


# --- the API page ----------------------------------------------------------------------------------

DOCUMENTED = re.findall(r"^\.\. auto\w+:: ([\w.]+)", (DOCS / "api.md").read_text("utf-8"), re.MULTILINE)
MODULES = {
    **dict.fromkeys((f"mcp_sessions{name}" for name in ("", ".client", ".telemetry", ".testing")), "mcp-sessions"),
    "mcp_sessions.integrations.fastapi": "fastapi",
    "mcp_sessions.integrations.fastmcp": "fastmcp",
}
"""The modules from which users import, each with the distribution that it needs."""


def things() -> list[Any]:
    """Import what the page names in full."""
    return [getattr(import_module(path.rpartition(".")[0]), path.rpartition(".")[2]) for path in DOCUMENTED]


@pytest.mark.parametrize("module", [pytest.param(name, marks=needs(what)) for name, what in MODULES.items()])
def test_every_public_name_is_on_the_api_page(module: str) -> None:
    """It is documented once, under its own name or another one of the same object."""
    found, public = things(), import_module(module)
    assert [name for name in public.__all__ if not any(getattr(public, name) is thing for thing in found)] == []
    assert len(DOCUMENTED) == len(set(DOCUMENTED))


def test_every_store_and_every_event_is_on_the_api_page() -> None:
    """They have no name in `mcp_sessions`."""
    stores = {MemoryStore, PostgresStore, RedisStore, SQLiteStore, Store}
    assert stores | {*get_args(SessionEvent)} <= {thing for thing in things() if isinstance(thing, type)}


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
