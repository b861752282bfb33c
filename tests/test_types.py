"""The types that users see, in the eyes of mypy and pyright: the package is complete, and its options are checked."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from environments import require

require("mypy")

import mcp_sessions
from integration import javascript

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path(mcp_sessions.__file__).parent.parent
PYRIGHT = ROOT / "tests" / "support" / "pyright"
MYPY = (sys.executable, "-m", "mypy", "--strict", "--cache-dir", ROOT / ".mypy_cache" / "users")

PROGRAM = """
    from starlette.applications import Starlette
    from starlette.middleware import Middleware

    from mcp_sessions import Limits, MCPSessionMiddleware, add_sessions, from_env

    app = add_sessions(Starlette(), path="/mcp", keys="env:KEYS", lifetime=3600, limits=Limits(batch=7))
    app.add_middleware(MCPSessionMiddleware, keys="env:KEYS")
    Middleware(MCPSessionMiddleware, **from_env(audience="https://shop.example"))
    add_sessions(app, **from_env(tracked=True))
    MCPSessionMiddleware.from_env(app, path=None)
"""
WRONG = """
    from starlette.applications import Starlette

    from mcp_sessions import MCPSessionMiddleware, add_sessions, from_env

    app = Starlette()
    add_sessions(app, lifetime="12h")
    add_sessions(app, live_time=3600)
    from_env(tracked="yes")
    MCPSessionMiddleware.from_env(app, on_store_error="ignore")
"""


@pytest.fixture
def anyio_backend() -> str:
    """A checker is a program of its own."""
    return "asyncio"


@pytest.fixture(autouse=True)
def found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let both checkers find this package and what is installed here."""
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    monkeypatch.setenv("PYTHONPATH", str(PACKAGE))
    monkeypatch.setenv("MYPYPATH", str(PACKAGE))


async def pyright(home: Path, *arguments: str | Path) -> str:
    """Run pyright, and return its output.

    Raises:
        RuntimeError: It found errors, which the message names.
    """
    return await javascript.run(javascript.packages(PYRIGHT), home, "pyright", *map(str, arguments))


def mypy(*programs: Path) -> str:
    """Run mypy, strict, and return what it finds."""
    command = [str(part) for part in (*MYPY, *programs)]
    return subprocess.run(command, cwd=programs[0].parent, capture_output=True, text=True, check=False).stdout


def program(folder: Path, text: str) -> Path:
    path = folder / "program.py"
    path.write_text(dedent(text), "utf-8")
    return path


async def test_every_type_is_known(tmp_path: Path) -> None:
    """Pyright finds no unknown or ambiguous type in what the package exports."""
    report = await pyright(tmp_path, "--verifytypes", "mcp_sessions", "--ignoreexternal", "--outputjson")
    assert json.loads(report)["typeCompleteness"]["completenessScore"] == 1


async def test_options_have_types_wherever_they_are_given_and_in_the_readme(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    paths = [tmp_path / f"block_{number}.py" for number in range(len(blocks))]
    for path, block in zip(paths, blocks, strict=True):
        path.write_text(block, "utf-8")
    paths.append(program(tmp_path, PROGRAM))
    assert "Success: no issues found" in mypy(*paths)
    assert "0 errors" in await pyright(tmp_path, *paths)


async def test_wrong_options_are_found_before_the_program_runs(tmp_path: Path) -> None:
    """A wrong name or type is an error in each of the last four lines, for both checkers."""
    path = program(tmp_path, WRONG)
    lines = path.read_text("utf-8").count("\n")
    wrong = {*range(lines - 3, lines + 1)}
    assert {int(line) for line in re.findall(r"program\.py:(\d+): error", mypy(path))} == wrong
    with pytest.raises(RuntimeError) as failed:
        await pyright(tmp_path, path)
    assert {int(line) for line in re.findall(r"program\.py:(\d+):\d+ - error", str(failed.value))} == wrong
