"""The programs of `docs/clients.md` run as two clients, and the page's table is what they got."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import generated
import pytest
from environments import require

require("mcp>=2")

from starlette.types import Message, Receive, Scope, Send

from frameworks import pair, trial, ways

OFFICIAL = [program for program in trial.programs(trial.PROGRAMS) if program.needs == "mcp>=2,<3"][:1]


def rows(page: Path) -> list[list[str]]:
    """Return the cells of each row on a page."""
    return [line.strip("| ").split(" | ") for line in generated.part(page, trial.COMMAND).splitlines()[2:]]


def test_the_page_has_every_program() -> None:
    """Default settings come first; where they give no session, another row of the client does."""
    found = trial.programs(trial.PROGRAMS)
    assert [row[1] for row in rows(trial.PAGE)] == [program.setting for program in found]
    assert [re.sub(r" [\d.]+$", "", row[0]) for row in rows(trial.PAGE)] == [program.client for program in found]
    helped = {row[0] for row in rows(trial.PAGE) if row[1] != "default" and row[3].startswith("a session")}
    assert {row[0] for row in rows(trial.PAGE) if not row[3].startswith("a session")} <= helped


def test_two_clients_have_a_cart_each_on_four_workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The tool, with this environment in place of a new one: the SDK's default client gets a session by cookie."""
    page = Path(shutil.copy(trial.PAGE, tmp_path))
    monkeypatch.setattr(sys, "argv", ["frameworks", "--client", "SDK", "--page", str(page)])
    monkeypatch.setattr(trial, "environment", lambda needs, cache, uv: Path(sys.executable))
    monkeypatch.setattr(trial, "programs", lambda page: OFFICIAL)
    monkeypatch.setattr(sys, "path", [*sys.path])
    runpy.run_path(str(trial.HERE / "__main__.py"))
    [[client, *cells]] = rows(page)
    assert client.startswith("SDK 2.")
    assert cells == ["default", "2026-07-28", "a session, by cookie"]


def test_an_environment_has_the_package_and_what_the_program_needs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    commands = []
    monkeypatch.setattr(subprocess, "run", lambda command, check: commands.append(command))
    python = trial.environment("agno fastmcp>=4", tmp_path, "uv")
    assert python == tmp_path / "agno-fastmcp-4" / "bin" / "python"
    assert commands[0][:2] == ["uv", "venv"]
    assert commands[1][-4:] == ["-e", str(trial.ROOT), "agno", "fastmcp>=4"]


@pytest.mark.parametrize(
    ("printed", "got"),
    [
        ([trial.KEPT, trial.KEPT], "a session, by cookie"),
        ([trial.FORGOTTEN, trial.FORGOTTEN], "**one for each call**, by cookie"),
        ([trial.KEPT, ["bread"]], "**none**"),
        ([["bread, bread", *trial.KEPT[1:]], trial.KEPT], "**none**"),
    ],
)
def test_both_clients_must_have_it(printed: list[list[str]], got: str) -> None:
    assert trial.gets(printed, "cookie") == got


@pytest.mark.parametrize(
    ("headers", "body", "note"),
    [
        ([(b"mcp-session-id", b"eyJ")], b'{"method": "tools/call"}', "2025-11-25 header\n"),
        ([(b"cookie", b"a=b")], b'{"method": "tools/call"}', "2025-11-25 cookie\n"),
        (
            [(b"cookie", b"a=b")],
            b'{"method": "tools/call", "params": {"_meta": {"sessionId": 1}}}',
            "2025-11-25 `_meta`\n",
        ),
        ([], b'{"method": "tools/call"}', "2025-11-25 \n"),
        ([], b'{"method": "tools/list"}', ""),
    ],
)
async def test_a_call_is_noted(headers: list[tuple[bytes, bytes]], body: bytes, note: str, tmp_path: Path) -> None:
    """A line says how a tool call names its session; other requests leave none."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert (await receive())["body"] == body

    async def receive() -> Message:
        return {"type": "http.request", "body": body}

    send: Any = None  # the application sends nothing
    notes = tmp_path / "notes"
    notes.touch()
    scope = {"type": "http", "headers": [(ways.VERSION, b"2025-11-25"), *headers]}
    await ways.noted(app, notes)(scope, receive, send)
    assert notes.read_text("utf-8") == note


def test_a_program_runs_twice(tmp_path: Path) -> None:
    """Each of the two runs has its own names and its own output."""
    (tmp_path / "program.py").write_text("assert __name__ == '__main__'\nseen = []\nseen.append(1)\nprint(len(seen))\n")
    assert pair.pair(tmp_path / "program.py") == [["1"], ["1"]]


def test_a_server_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "DEADLINE", 0)
    with pytest.raises(TimeoutError, match="nowhere"):
        trial._await("http://nowhere.invalid/")
