"""The package keeps its own house rules, and the checker of those rules sees every way of breaking them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from architecture import FLOORS, MAX_BODY_LINES, MAX_FILE_LINES, read_house, violations

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "middleware" / "mcp_sessions"


def test_the_package_keeps_every_rule() -> None:
    """Imports go down, never round; the pure floors are pure; files and functions are short and introduced."""
    found = violations(PACKAGE)
    assert not found, "\n".join(found)


def test_the_package_is_there_to_be_read() -> None:
    """The checker reads the real files: an empty folder would keep every rule, too."""
    assert {"errors/__init__", "events", "session"} <= read_house(PACKAGE).keys()


def test_no_file_stands_on_two_floors() -> None:
    """Each name is listed once, so a file's floor is never a question of order."""
    listed = [name for rooms in FLOORS.values() for name in rooms]
    assert len(listed) == len(set(listed))


# --- a made-up package that breaks one rule at a time --------------------------------------------

DOC = '"""What happens here."""\n'
LONG_FUNCTION = DOC + "def f():\n    '''Said.'''\n" + "    x = 1\n" * (MAX_BODY_LINES + 1)
JUST_SHORT_ENOUGH = DOC + "def f():\n    '''Said.'''\n" + "    x = 1\n" * MAX_BODY_LINES

BROKEN: dict[str, tuple[dict[str, str], list[str]]] = {
    "an upward import": (
        {"session": DOC + "from .tokens import Tokens\n", "tokens": DOC},
        ["session: floor 0 imports tokens, which is on floor 1"],
    ),
    "an upward import inside a function": (
        {"session": DOC + "def f():\n    from . import middleware\n", "middleware": DOC},
        ["session: floor 0 imports middleware, which is on floor 3"],
    ),
    "an upward import by the full name": (
        {"state": DOC + "import made.stores.base\n", "stores/__init__": DOC, "stores/base": DOC},
        ["state: floor 1 imports stores/base, which is on floor 2"],
    ),
    "an upward import out of a folder": (
        {"dialects/draft": DOC + "from .. import options\n", "options": DOC},
        ["dialects/draft: floor 1 imports options, which is on floor 3"],
    ),
    "an upward import of a folder": (
        {"state": DOC + "from made.stores import Store\n", "stores/__init__": DOC},
        ["state: floor 1 imports stores/__init__, which is on floor 2"],
    ),
    "an upward import of the package's own face": (
        {"state": DOC + "from . import Session\n", "__init__": DOC},
        ["state: floor 1 imports __init__, which is on floor 3"],
    ),
    "a circle": (
        {"keys": DOC + "from .state import a\n", "state": DOC + "def f():\n    from .keys import b\n"},
        ["keys: imports in a circle: keys -> state -> keys", "state: imports in a circle: state -> keys -> state"],
    ),
    "a file that nobody listed": ({"helpers": DOC}, ["helpers: not listed in FLOORS"]),
    "an event loop in a rule": ({"tokens": DOC + "import asyncio\n"}, ["tokens: a pure floor imports asyncio"]),
    "a framework in a rule": (
        {"sse": DOC + "def f():\n    from starlette.types import Scope\n"},
        ["sse: a pure floor imports starlette"],
    ),
    "a file read in a rule": (
        {"keys": DOC + "text = open('secret')\n"},
        ["keys:2: a pure floor calls open()"],
    ),
    "a clock in a rule": (
        {"events": DOC + "import datetime as d\nfrom datetime import datetime\nx = datetime.now()\n"},
        ["events:4: a pure floor reads the clock (datetime.now)"],
    ),
    "a clock by its full name in a rule": (
        {"events": DOC + "import datetime\nx = datetime.date.today()\n"},
        ["events:3: a pure floor reads the clock (date.today)"],
    ),
    "an optional library at the top": (
        {"cli": DOC + "try:\n    import redis.asyncio\nexcept ImportError:\n    pass\n"},
        ["cli: imports redis, which is optional, when it is itself imported"],
    ),
    "an optional library in a class body": (
        {"client": DOC + "class C:\n    from mcp.types import Tool\n"},
        ["client: imports mcp, which is optional, when it is itself imported"],
    ),
    "an optional library where types are not checked": (
        {"client": DOC + "if TYPE_CHECKING:\n    import fastmcp\nelse:\n    import httpx\n"},
        ["client: imports httpx, which is optional, when it is itself imported"],
    ),
    "a file without an introduction": ({"client": "x = 1\n"}, ["client: no module docstring"]),
    "a file that is too long": (
        {"client": DOC + "x = 1\n" * MAX_FILE_LINES},
        [f"client: {MAX_FILE_LINES + 1} lines, more than {MAX_FILE_LINES}"],
    ),
    "a function that is too long": (
        {"client": LONG_FUNCTION},
        [f"client:2: f has {MAX_BODY_LINES + 1} lines, more than {MAX_BODY_LINES}"],
    ),
}

SOUND: dict[str, dict[str, str]] = {
    "imports that go down": {
        "middleware": DOC + "import os\nfrom .stores.base import Store\nfrom . import session\n",
        "stores/__init__": "",
        "stores/base": DOC + "from ..session import E\nfrom . import memory\nimport time\n",
        "stores/memory": DOC + "import sqlite3\n",
        "session": DOC + "from collections.abc import Mapping\nimport made_up.other\n",
    },
    "an optional library in the factory that needs it": {
        "client": DOC + "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import mcp\n"
        "async def f():\n    import redis\n    await redis()\n"
    },
    "times that are only shown": {"session": DOC + "from datetime import datetime\nx = datetime.fromtimestamp(0)\n"},
    "a function at the limit": {"client": JUST_SHORT_ENOUGH},
    "a function that only says what it is": {"client": DOC + 'def f():\n    """Said."""\n'},
}


def build(folder: Path, files: dict[str, str]) -> Path:
    """Write a made-up package named `made`."""
    package = folder / "made"
    for name, source in files.items():
        path = package / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, "utf-8")
    return package


@pytest.mark.parametrize("case", BROKEN)
def test_the_checker_names_a_broken_rule(case: str, tmp_path: Path) -> None:
    """Each rule, broken alone, is reported in words that say where and what."""
    files, expected = BROKEN[case]
    found = violations(build(tmp_path, files))
    assert len(found) == 1
    assert found[0] in expected


@pytest.mark.parametrize("case", SOUND)
def test_the_checker_is_silent_on_sound_files(case: str, tmp_path: Path) -> None:
    """What the rules allow is not reported."""
    assert violations(build(tmp_path, SOUND[case])) == []


# --- nothing of the machine on which it was written ----------------------------------------------

LEFT_OUT = frozenset({"build", "dist", "_build", "node_modules", "__pycache__"})
# A path of somebody's own machine: a home, or the folder that the work is done in. Made-up people may have homes.
LOCAL_PATH = re.compile(r"(?<![\w.~-])/(?:home/(?!me/)|Users/(?!me/)|root/|work/|workspace/|private/tmp/)[\w.]")


def project_files(root: Path) -> Iterator[Path]:
    """Every file that belongs to the project: not what tools leave behind, and not the history."""
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in LEFT_OUT and (name == ".ci" or name[0] != ".")]
        # In a linked working tree the history is a file that says where it lies.
        yield from (Path(folder, name) for name in names if name != ".git" and not name.startswith(".coverage"))


def local_paths(root: Path) -> list[str]:
    """Where a file of the project names a path that exists on one machine only."""
    found = []
    for path in project_files(root):
        text = path.read_bytes().decode("utf-8", "replace")
        found += [f"{path.relative_to(root)}: {match.group()}" for match in LOCAL_PATH.finditer(text)]
    return found


def test_no_file_names_a_path_of_somebodys_machine() -> None:
    """A stranger's checkout holds nothing that is true in one place only."""
    found = local_paths(ROOT)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("folder", ["home", "root", "work", "Users"])
def test_a_path_of_somebodys_machine_would_be_found(folder: str, tmp_path: Path) -> None:
    """The search sees such a path in text, and passes over the web, made-up homes and tools' leavings."""
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / ".ci" / "run").write_text(f"cd /{folder}/builder\n", "utf-8")
    (tmp_path / ".git" / "config").write_text(f"/{folder}/builder\n", "utf-8")
    (tmp_path / "page.md").write_text(f"https://a.example/{folder}/it a/{folder}/it file:///home/me/it\n", "utf-8")
    assert [found.replace(os.sep, "/") for found in local_paths(tmp_path)] == [f".ci/run: /{folder}/b"]
