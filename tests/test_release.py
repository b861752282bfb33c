"""The release script: one commit and one tag, with the version in every place, or nothing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from environments import needs

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / ".ci" / "release.py"
FILES = ("pyproject.toml", "CHANGELOG.md", "middleware/mcp_sessions/__init__.py")
SELF = {f"GIT_{who}_{what}": "test@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}

pytestmark = [needs("mcp>=2"), pytest.mark.skipif(shutil.which("git") is None, reason="needs git")]


class Clone:
    """A repository with the files that a release changes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in FILES:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
        self.git("init", "--quiet", "--initial-branch=main")
        self.git("add", ".")
        self.git("commit", "--quiet", "--message", "Begin")

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **SELF, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
        return subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False)

    def git(self, *arguments: str) -> str:
        done = self.run("git", *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def release(self, version: str) -> str:
        """Run the script, and return what it prints."""
        done = self.run(sys.executable, str(SCRIPT), version)
        return done.stdout + done.stderr

    def write(self, name: str, old: str, new: str) -> None:
        path = self.folder / name
        path.write_text(path.read_text("utf-8").replace(old, new), "utf-8")

    def read(self, name: str) -> str:
        return (self.folder / name).read_text("utf-8")


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    made = Clone(tmp_path)
    made.write("CHANGELOG.md", "## [Unreleased]\n", "## [Unreleased]\n\n### Added\n\n- A line of the test.\n")
    made.git("commit", "--quiet", "--all", "--message", "Add")
    return made


def test_a_release_is_a_commit_and_a_tag(clone: Clone) -> None:
    """What was unreleased is the entry of the version, which stands in the package and its metadata."""
    assert clone.release("9.8.7").startswith("tagged; publish with: git push origin main v9.8.7")
    assert clone.git("log", "--format=%s", "-1", "v9.8.7") == "Release 9.8.7"
    assert clone.git("status", "--porcelain") == ""
    assert clone.git("cat-file", "-t", "v9.8.7") == "tag"
    assert 'version = "9.8.7"' in clone.read("pyproject.toml")
    assert '__version__ = "9.8.7"' in clone.read("middleware/mcp_sessions/__init__.py")
    changelog = clone.read("CHANGELOG.md")
    assert re.search(r"## \[Unreleased\]\n\n## \[9\.8\.7\] - \d{4}-\d\d-\d\d\n\n### Added\n\n- A line", changelog)


@pytest.mark.parametrize(
    ("unreleased", "changes"),
    [("commits/main", "releases/tag/v9.8.7"), ("compare/v9.8.6...HEAD", "compare/v9.8.6...v9.8.7")],
    ids=["the first", "another"],
)
def test_a_release_links_to_its_changes(unreleased: str, changes: str, clone: Clone) -> None:
    """Since the one before it; the first shows itself."""
    home = "https://github.com/mcp-sessions/mcp-sessions"
    (line,) = re.findall(r"^\[Unreleased\]: .+\n", clone.read("CHANGELOG.md"), re.MULTILINE)
    clone.write("CHANGELOG.md", line, f"[Unreleased]: {home}/{unreleased}\n")
    clone.git("commit", "--quiet", "--all", "--allow-empty", "--message", "Link")
    clone.release("9.8.7")
    links = f"[Unreleased]: {home}/compare/v9.8.7...HEAD\n[9.8.7]: {home}/{changes}\n"
    assert links in clone.read("CHANGELOG.md")


def test_a_version_that_has_its_entry_is_tagged(clone: Clone) -> None:
    """The commit that stands is the release."""
    clone.release("9.8.7")
    clone.git("tag", "--delete", "v9.8.7")
    before = clone.git("rev-parse", "HEAD")
    clone.release("9.8.7")
    assert clone.git("rev-parse", "v9.8.7^{commit}") == before


@pytest.mark.parametrize(
    ("version", "prepare", "why"),
    [
        ("soon", ["git", "status"], "soon is not a version"),
        ("9.8.7", ["git", "switch", "--quiet", "--create", "other"], "made on the branch main"),
        ("9.8.7", ["rm", "pyproject.toml"], "not committed"),
        ("9.8.7", ["git", "tag", "v9.8.7"], "the tag v9.8.7 is there already"),
    ],
)
def test_a_release_that_cannot_be_made_changes_nothing(
    version: str, prepare: list[str], why: str, clone: Clone
) -> None:
    clone.run(*prepare)
    before = clone.git("rev-parse", "HEAD"), clone.git("status", "--porcelain"), clone.git("tag", "--list")
    assert why in clone.release(version)
    assert (clone.git("rev-parse", "HEAD"), clone.git("status", "--porcelain"), clone.git("tag", "--list")) == before


def test_a_release_needs_something_to_tell(clone: Clone) -> None:
    """Right after a release there is nothing under `Unreleased`."""
    clone.release("9.8.7")
    assert "CHANGELOG.md has nothing under Unreleased" in clone.release("9.8.8")
    assert clone.git("tag", "--list") == "v9.8.7"
