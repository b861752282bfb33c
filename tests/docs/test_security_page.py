"""`docs/security.md` says what is so: its tests exist, its defaults are the defaults, and its commands work."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from mcp_sessions import KeyRing, Limits
from mcp_sessions._tokens.keyfile import key_source

TESTS = Path(__file__).resolve().parent.parent
PAGE = (TESTS.parent / "docs" / "security.md").read_text("utf-8")

NAMED = sorted(set(re.findall(r"`([\w/]+\.py)::([\w:]+)`", PAGE)))
LIMITS = re.findall(r"^\| `Limits\.(\w+)` \| (\w+) \|", PAGE, re.MULTILINE)


def functions(file: str) -> set[str]:
    """The tests of a file, which is named as far as needed; those in classes as `Class::test`."""
    (path,) = TESTS.rglob(file)
    tree = ast.parse(path.read_text("utf-8"))
    found = set()
    for node in tree.body:
        inner = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
        found |= {prefix + one.name for one in inner if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}
    return found


def test_the_page_names_tests() -> None:
    """A pattern that matches nothing would find nothing missing."""
    assert len(NAMED) > 40
    assert ("test_minting.py", "test_every_session_is_another") in NAMED
    assert "TestDelete::test_a_deleted_session_is_gone" in functions("test_answers.py")


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_a_test_that_is_named_exists(file: str, name: str) -> None:
    """Whoever renames one has to look at what it holds."""
    assert name in functions(file)


def test_every_threat_is_held_by_a_test_or_said_not_to_be() -> None:
    """A row with an empty third column says plainly that nothing is done."""
    rows = [line.split(" | ") for line in PAGE.split("\n## Limits")[0].splitlines() if line.startswith("| ")]
    assert len(rows) > 15
    assert [row[0] for row in rows[1:] if "::" not in row[2] and not row[1].startswith("none: ")] == []


@pytest.mark.parametrize(("option", "default"), LIMITS)
def test_a_limit_has_the_default_that_it_is_said_to_have(option: str, default: str) -> None:
    """Where nothing is given."""
    assert str(getattr(Limits(), option)).removesuffix(".0") == default


def test_no_limit_is_left_out() -> None:
    """Each has a row; how long a store may take is no matter of what a caller sends."""
    assert {field.name for field in fields(Limits)} - {"store_timeout"} == {name for name, _ in LIMITS}


def commands(heading: str) -> list[str]:
    """The commands of the first block under a heading."""
    block = PAGE.split(f"\n{heading}\n")[1].split("```console\n")[1].split("```")[0]
    return [line.removeprefix("$ ") for line in block.splitlines()]


def test_the_commands_make_and_roll_keys(tmp_path: Path) -> None:
    """Run as they stand, they give a file that is read as `[old]`, `[old, new]`, `[new, old]` and `[new]`."""
    program = tmp_path / "bin" / "mcp-sessions"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m mcp_sessions "$@"\n', "utf-8")
    program.chmod(0o755)
    environ = {**os.environ, "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"}
    rings: list[list[str]] = []
    for command in [*commands("## Keys"), *commands("### Rotation")]:
        subprocess.run(["sh", "-ec", f"umask 077; {command}"], cwd=tmp_path, env=environ, check=True)
        ring: KeyRing = key_source(f"file:{tmp_path / 'keys'}")(0)
        rings.append(list(ring._keys))
    old, new = rings[0][0], rings[-1][0]
    assert rings == [[old], [old], [old, new], [new, old], [new]]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bin", "keys"]
    assert (tmp_path / "keys").stat().st_mode & 0o777 == 0o600
