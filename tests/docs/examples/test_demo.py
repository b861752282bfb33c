"""`make demo`: it succeeds with the examples as they are, and reports a server that is wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from example_servers import EXAMPLES, assert_in_order, printed_by

import demo

ADDED = """
The 3 lines of counter.py that give it sessions
    from mcp_sessions import MCPSessionMiddleware, require_session
    session = require_session()
    app = MCPSessionMiddleware(mcp.streamable_http_app(stateless_http=True), keys="env:MCP_SESSIONS_KEYS")
"""
STEPS = (
    '- server/discover -> "some"',
    'A append("eggs") -> ["milk", "eggs"]',
    'B read() -> ["call Ada"]',
    "- read() -> []",
    "H count() five times -> [1, 2, 3, 4, 5]",
    "C count() at the same moment -> [6]",
    "C count() -> 7",
    'A read() -> ["milk", "eggs"]',
    "A sessions/delete -> deleted",
    "A read() -> refused: -32043 Session not found",
    'B append("call Bob") -> ["call Ada", "call Bob"]',
)


def copied(folder: Path, name: str, old: str, new: str) -> list[str]:
    """Copy both servers to a folder, change one, and return the demo's arguments."""
    for source in ("counter.py", "notebook.py"):
        text = (EXAMPLES / source).read_text("utf-8")
        if source == name:
            assert old in text
            text = text.replace(old, new)
        (folder / source).write_text(text, "utf-8")
    return ["--servers", str(folder)]


def test_the_demo_prints_every_step() -> None:
    """The steps come in order, and a restarted server has another process at the same address."""
    printed = printed_by("demo")
    assert printed.startswith(re.sub(r" +", " ", ADDED))
    assert printed.endswith("\nEverything came back as it should.\n")
    assert_in_order(printed, STEPS)
    served = re.findall(r"(counter|notebook) process (\d+) serves (\S+)", printed)
    assert len({number for _, number, _ in served}) == 3
    assert len({(name, url) for name, _, url in served}) == 2


def test_a_server_that_loses_notes_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The demo prints what it expected and what it got, and exits with 1."""
    arguments = copied(tmp_path, "notebook.py", '[*session.state.get("notes", []), note]', "[note]")
    assert demo.main(arguments) == 1
    # What follows is not measured, since the demo ends its own event loop.
    differs = 'notebook, session A, append("eggs"): expected ["milk", "eggs"], and got ["eggs"]\n'  # pragma: no cover
    assert capsys.readouterr().out.endswith(differs)  # pragma: no cover


def test_a_server_that_does_not_start_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The output of a server that does not start is shown."""
    arguments = copied(tmp_path, "notebook.py", "mcp = MCPServer", "mcp = NoSuchServer")
    assert demo.main(arguments) == 1
    # What follows is not measured, since the demo ends its own event loop.
    assert "name 'NoSuchServer' is not defined" in capsys.readouterr().out


def test_a_server_that_is_never_ready_ends_the_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hanging = "import threading\n\nthreading.Event().wait()\nmcp = MCPServer"
    assert demo.main(copied(tmp_path, "notebook.py", "mcp = MCPServer", hanging), limit=0.2) == 1
    assert capsys.readouterr().out.endswith("not at the end of the story after 0.2 seconds\n")
