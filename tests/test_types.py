"""The types that users see, in the eyes of mypy and pyright: the package is complete, and its options are checked."""

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

RIGHT = """
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
    add_sessions(app, lifetime=b"12h")
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
    """Run pyright, and return its output, be it errors."""
    try:
        return await javascript.run(javascript.packages(PYRIGHT), home, "pyright", *map(str, arguments))
    except RuntimeError as failed:
        return str(failed)


def mypy(folder: Path, *programs: str) -> str:
    """Run mypy, strict, and return what it finds."""
    command = [str(part) for part in (*MYPY, *programs)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False).stdout


async def test_every_type_is_known(tmp_path: Path) -> None:
    """Pyright finds no unknown or ambiguous type in what the package exports."""
    report = await pyright(tmp_path, "--verifytypes", "mcp_sessions", "--ignoreexternal", "--outputjson")
    assert json.loads(report)["typeCompleteness"]["completenessScore"] == 1


async def test_options_have_types_wherever_they_are_given_and_in_the_readme(tmp_path: Path) -> None:
    """Both checkers find a wrong name or type in each of the last four lines of the wrong program, and no other."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    programs = {f"block_{number}.py": block for number, block in enumerate(blocks)}
    programs |= {"right.py": dedent(RIGHT), "wrong.py": dedent(WRONG)}
    for name, text in programs.items():
        (tmp_path / name).write_text(text, "utf-8")
    lines = programs["wrong.py"].count("\n")
    wrong = {("wrong.py", str(line)) for line in range(lines - 3, lines + 1)}
    assert {*re.findall(r"(\w+\.py):(\d+): error", mypy(tmp_path, *programs))} == wrong
    checked = await pyright(tmp_path, *(tmp_path / name for name in programs))
    assert {*re.findall(r"(\w+\.py):(\d+):\d+ - error", checked)} == wrong
