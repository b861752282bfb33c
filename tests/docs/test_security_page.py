"""`docs/security.md` is right: its tests exist, its defaults are those of the code, and its commands work."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from mcp_sessions import KeyRing, Limits, testing
from mcp_sessions._tokens.keyfile import key_source

TESTS = Path(__file__).resolve().parent.parent
CONTRACT = Path(testing.__file__).parent
PAGE = (TESTS.parent / "docs" / "security.md").read_text("utf-8")

NAMED = sorted(set(re.findall(r"`([\w/]+\.py)::([\w:]+)`", PAGE)))
LIMITS = re.findall(r"^\| `Limits\.(\w+)` \| (\w+) \|", PAGE, re.MULTILINE)


def functions(file: str) -> set[str]:
    """Return the tests of a file, which is named as far as needed; those in classes as `Class::test`."""
    (path,) = (*TESTS.rglob(file), *CONTRACT.parent.glob(file))
    tree = ast.parse(path.read_text("utf-8"))
    found = set()
    for node in tree.body:
        inner = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
        found |= {prefix + one.name for one in inner if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}
    return found


def test_the_page_names_tests() -> None:
    """Tests are found on the page, so the pattern matches."""
    assert len(NAMED) > 40
    assert ("test_minting.py", "test_every_session_is_another") in NAMED
    assert "TestDelete::test_a_deleted_session_is_gone" in functions("test_answers.py")


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_a_named_test_exists(file: str, name: str) -> None:
    assert name in functions(file)


def test_every_threat_has_a_test_or_an_explicit_none() -> None:
    """A threat without a test is marked with "None:"."""
    threats = PAGE.split("\n## Threats\n")[1].split("\n## ")[0].split("\n\n")
    entries = [entry for entry in threats if "\n: " in entry]
    assert len(entries) > 30
    assert [entry for entry in entries if "::" not in entry and "\n: None: " not in entry] == []


@pytest.mark.parametrize(("option", "default"), LIMITS)
def test_a_limit_has_its_documented_default(option: str, default: str) -> None:
    """The default on the page is that of the code."""
    assert str(getattr(Limits(), option)).removesuffix(".0") == default


def test_every_limit_has_a_row() -> None:
    """Every limit is on the page, except `store_timeout`, which callers do not influence."""
    assert {field.name for field in fields(Limits)} - {"store_timeout"} == {name for name, _ in LIMITS}


def commands(heading: str) -> list[str]:
    """Return the commands of the first block under a heading."""
    block = PAGE.split(f"\n{heading}\n")[1].split("```console\n")[1].split("```")[0]
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
