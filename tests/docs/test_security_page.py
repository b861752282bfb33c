"""`docs/security.md` is right: it names what proves each defence, its defaults are the code's, its commands work."""

import ast
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from pages import blocks, rows

from mcp_sessions import KeyRing, Limits
from mcp_sessions._tokens.keyfile import key_source
from mutants import MUTANTS, ROOT, place_of

PAGE = (ROOT / "docs" / "security.md").read_text("utf-8")


def test_every_defence_names_the_changes_that_remove_it() -> None:
    """And every change is named once: what has no row defends nothing, and a row without one is not proved."""
    named = [re.findall(r"`([a-z0-9-]+)`", row[-1]) for row in rows(PAGE, "Defences")]
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


def test_every_limit_has_a_row() -> None:
    """Every limit is on the page, except `store_timeout`, which callers do not influence."""
    rows = "".join(re.findall(r"^\| (`[a-z_`, ]+) \|", PAGE.partition("## Limits")[2], re.MULTILINE))
    assert {field.name for field in fields(Limits)} - {"store_timeout"} == set(re.findall(r"`(\w+)`", rows))


def commands(heading: str) -> list[str]:
    """Return the commands of the first block under a heading."""
    block, *_ = blocks(PAGE.partition(f"\n{heading}\n")[2], "console")
    return [line.removeprefix("$ ") for line in block.splitlines()]


def test_the_commands_make_and_roll_keys(tmp_path: Path) -> None:
    """The file is read as `[old]`, `[old, new]`, `[new, old]` and `[new]`, and keeps its group and mode."""
    program = tmp_path / "bin" / "mcp-sessions"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m mcp_sessions "$@"\n', "utf-8")
    program.chmod(0o755)
    environ = {**os.environ, "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"}
    keys = tmp_path / "keys"
    group = os.getgid() + (os.geteuid() == 0)  # only root may give a file to another group

    def ring_after(command: str) -> list[str]:
        subprocess.run(["sh", "-ec", f"umask 022; {command}"], cwd=tmp_path, env=environ, check=True)
        ring: KeyRing = key_source(f"file:{keys}")(0)
        return list(ring._keys)

    (make,) = commands("## Keys")
    (old,) = ring_after(make)
    assert keys.stat().st_mode & 0o777 == 0o600
    os.chown(keys, -1, group)
    keys.chmod(0o640)
    rings = []
    for command in commands("### Rotation"):
        rings.append(ring_after(command))
        files = [path.stat() for path in tmp_path.iterdir() if path.is_file()]
        assert {(file.st_gid, file.st_mode & 0o777) for file in files} == {(group, 0o640)}
    (new,) = rings[-1]
    assert rings == [[old], [old, new], [new, old], [new]]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bin", "keys"]
