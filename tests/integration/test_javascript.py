"""javascript.py: packages are installed once, by whoever comes first, and what cannot be installed is said."""

from __future__ import annotations

from pathlib import Path

import pytest

import debian

from . import javascript
from .javascript import install, packages, run

INSTALLS = """echo "$@" >> "$LOG"
mkdir -p node_modules/.bin
printf '#!/bin/sh\\necho "$HOME: $@"; [ $# = 1 ]\\n' > node_modules/.bin/made-up
chmod +x node_modules/.bin/made-up
"""
FAILS = "echo no network; exit 1\n"


class Machine:
    """A machine whose npm does as a test says, and a manifest to install."""

    def __init__(self, folder: Path, script: str) -> None:
        self.cache = folder / "home" / "cache"
        self.log = folder / "log"
        self.manifest = folder / "some"
        self.npm = folder / "npm"
        self.manifest.mkdir()
        self.lock("{}")
        (self.manifest / "package.json").write_text("{}", "utf-8")
        self.npm.write_text(f"#!/bin/sh\nLOG={self.log}\n{script}", "utf-8")
        self.npm.chmod(0o755)

    def lock(self, text: str) -> None:
        """Say which packages are wanted."""
        (self.manifest / "package-lock.json").write_text(text, "utf-8")

    def install(self, program: str) -> Path:
        """Instead of Debian's."""
        return self.npm


def machine(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Machine:
    made = Machine(folder, script)
    monkeypatch.setattr(debian, "install", made.install)
    return made


def test_packages_are_installed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the lock file alone, and without running what packages would run; nothing but the packages is left."""
    made = machine(tmp_path, monkeypatch, INSTALLS)
    folder = install(made.manifest, made.cache)
    assert install(made.manifest, made.cache) == folder
    assert made.log.read_text("utf-8").splitlines() == ["ci --ignore-scripts --no-audit --no-fund"]
    assert {path.name for path in folder.iterdir()} == {"package.json", "package-lock.json", "node_modules"}
    assert {path.name for path in made.cache.iterdir()} == {folder.name, "lock"}


def test_other_packages_are_installed_beside_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another checkout may still want the old ones."""
    made = machine(tmp_path, monkeypatch, INSTALLS)
    before = install(made.manifest, made.cache)
    made.lock('{"lockfileVersion":3}')
    assert install(made.manifest, made.cache) != before
    assert before.exists()


def test_who_comes_second_uses_what_the_first_has_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs of the tests at once, each in its environment: the second looks again when it has the lock."""
    made = machine(tmp_path, monkeypatch, INSTALLS)
    folder = install(made.manifest, made.cache)
    folder.rename(tmp_path / "by-the-first")

    def meanwhile(program: str) -> Path:
        (tmp_path / "by-the-first").rename(folder)
        return made.npm

    monkeypatch.setattr(debian, "install", meanwhile)
    assert install(made.manifest, made.cache) == folder
    assert len(made.log.read_text("utf-8").splitlines()) == 1


def test_an_installation_that_fails_says_why_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What npm said, and no half of anything."""
    made = machine(tmp_path, monkeypatch, FAILS)
    with pytest.raises(debian.NotInstalled, match=r"(?s)npm did not install some:.*no network"):
        install(made.manifest, made.cache)
    assert [path.name for path in made.cache.iterdir()] == ["lock"]


def missing(manifest: Path, cache: Path) -> Path:
    raise debian.NotInstalled("npm is missing")


def test_without_npm_the_tests_are_skipped_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """On somebody's own machine."""
    monkeypatch.setattr(javascript, "install", missing)
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="JavaScript programs cannot be tested: npm is missing"):
        packages.__wrapped__()


def test_without_npm_the_tests_fail_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """There nobody would read of a skip."""
    monkeypatch.setattr(javascript, "install", missing)
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="JavaScript programs cannot be tested: npm is missing"):
        packages.__wrapped__()


async def test_a_program_of_the_packages_runs_in_a_home_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it prints comes back, and where it fails the error says what it printed."""
    made = machine(tmp_path, monkeypatch, INSTALLS)
    folder = install(made.manifest, made.cache)
    assert await run(folder, tmp_path, "made-up", "one") == f"{tmp_path}: one\n"
    with pytest.raises(RuntimeError, match=r"made-up failed \(1\): .*: one two"):
        await run(folder, tmp_path, "made-up", "one", "two")
