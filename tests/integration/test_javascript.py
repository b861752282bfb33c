"""`javascript`: packages are installed once, and a failed installation is reported."""

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
    """A machine whose npm is a script, and a manifest to install."""

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
        (self.manifest / "package-lock.json").write_text(text, "utf-8")

    def install(self, program: str) -> Path:
        return self.npm


def machine(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Machine:
    made = Machine(folder, script)
    monkeypatch.setattr(debian, "install", made.install)
    return made


def test_packages_are_installed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = machine(tmp_path, monkeypatch, INSTALLS)
    folder = install(made.manifest, made.cache)
    assert install(made.manifest, made.cache) == folder
    assert made.log.read_text("utf-8").splitlines() == ["ci --ignore-scripts --no-audit --no-fund"]
    assert {path.name for path in folder.iterdir()} == {"package.json", "package-lock.json", "node_modules"}
    assert {path.name for path in made.cache.iterdir()} == {folder.name, "lock"}
    made.lock('{"lockfileVersion":3}')  # a changed lock file gets a folder of its own
    assert install(made.manifest, made.cache) != folder
    assert folder.exists()


def test_a_second_run_uses_what_the_first_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = machine(tmp_path, monkeypatch, INSTALLS)
    folder = install(made.manifest, made.cache)
    folder.rename(tmp_path / "by-the-first")

    def meanwhile(program: str) -> Path:
        (tmp_path / "by-the-first").rename(folder)
        return made.npm

    monkeypatch.setattr(debian, "install", meanwhile)
    assert install(made.manifest, made.cache) == folder
    assert len(made.log.read_text("utf-8").splitlines()) == 1


def test_a_failed_installation_reports_why_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = machine(tmp_path, monkeypatch, FAILS)
    with pytest.raises(debian.NotInstalled, match=r"(?s)npm did not install some:.*no network"):
        install(made.manifest, made.cache)
    assert [path.name for path in made.cache.iterdir()] == ["lock"]


def missing(manifest: Path, cache: Path) -> Path:
    raise debian.NotInstalled("npm is missing")


def test_a_missing_npm_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(javascript, "install", missing)
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="JavaScript programs cannot be tested: npm is missing"):
        packages.__wrapped__()


async def test_a_program_runs_in_a_home_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = machine(tmp_path, monkeypatch, INSTALLS)
    folder = install(made.manifest, made.cache)
    assert await run(folder, tmp_path, "made-up", "one") == f"{tmp_path}: one\n"
    with pytest.raises(RuntimeError, match=r"made-up failed \(1\): .*: one two"):
        await run(folder, tmp_path, "made-up", "one", "two")
