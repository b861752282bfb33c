"""The repository's public face works: workflows and forms, the README on the package index, and the changelog."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from environments import INSTALLED, require

require("readme-renderer")

import yaml
from readme_renderer import markdown

ROOT = Path(__file__).resolve().parent.parent.parent
WORKFLOWS = sorted(ROOT.glob(".github/workflows/*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
COMMITTED = re.compile(
    r"https://(?:github|raw\.githubusercontent)\.com/mcp-sessions/mcp-sessions/(?:blob/)?main/([^#]+)"
)


def read(path: Path) -> Any:
    """Return the content of a YAML file."""
    return yaml.safe_load(path.read_text("utf-8"))


def steps(workflow: Path) -> list[dict[str, Any]]:
    """Return the steps of all jobs of a workflow, except those of the workflows that it calls."""
    return [step for job in read(workflow)["jobs"].values() for step in job.get("steps", [])]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_calls_targets_that_exist(workflow: Path) -> None:
    """Nothing else notices that the Makefile has lost one, before the night or the release in which it runs."""
    commands = "\n".join(step.get("run", "") for step in steps(workflow))
    called = {target for words in re.findall(r"^make ([a-z -]+)", commands, re.MULTILINE) for target in words.split()}
    assert called <= TARGETS
    assert called or workflow.stem == "release"


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_may_only_read_unless_a_job_asks_for_more(workflow: Path) -> None:
    """Every action is pinned to a commit, and no checkout leaves a credential behind."""
    assert read(workflow)["permissions"] in ({}, {"contents": "read"})
    actions = [step for step in steps(workflow) if "uses" in step]
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", step["uses"]) for step in actions)
    checkouts = [step for step in actions if step["uses"].startswith("actions/checkout@")]
    assert all(step["with"] == {"persist-credentials": False} for step in checkouts)


def test_every_supported_python_is_tested() -> None:
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    (workflow,) = (path for path in WORKFLOWS if path.stem == "tests")
    tested = read(workflow)["jobs"]["suite"]["strategy"]["matrix"]["python"]
    assert tested == re.findall(r'"Programming Language :: Python :: (3\.\d+)"', project)


def test_the_readme_can_be_shown_by_the_package_index() -> None:
    """It has no folder beside it there: every link is absolute, and leads to a file that exists."""
    shown = markdown.render((ROOT / "README.md").read_text("utf-8"))
    assert shown is not None
    links = re.findall(r'(?:href|src)="([^"]+)"', shown)
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    committed = [found[1] for found in map(COMMITTED.match, links) if found]
    assert committed
    assert [path for path in committed if not (ROOT / path).is_file()] == []


def test_the_newest_entry_of_the_changelog_is_this_version() -> None:
    """Once there is a release, its entry has the package's version and a date; what is not released stands above it."""
    entries = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert entries.pop(0) == "[Unreleased]"
    version = re.escape(INSTALLED["mcp-sessions"])
    assert entries == [] or re.fullmatch(rf"\[{version}\] - \d{{4}}-\d\d-\d\d", entries[0])


def test_the_readme_names_the_two_commands_that_set_up_everything() -> None:
    """A newcomer with a clone needs no other page to see it work and to run its tests."""
    readme = (ROOT / "README.md").read_text("utf-8")
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for target in ("demo", "test"):
        assert f"\n$ make {target} " in readme
        assert re.search(rf"^{target}: setup", makefile, re.MULTILINE)
