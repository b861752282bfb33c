"""`make demo`: a story that holds, and says so where it does not."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from example_servers import EXAMPLES

import demo

ADDED = """
The 3 lines of counter.py that give it sessions
    from mcp_sessions import MCPSessionMiddleware, current_session
    session = current_session()
    app = MCPSessionMiddleware(mcp.streamable_http_app(stateless_http=True), keys="env:MCP_SESSION_KEYS")
"""
TOLD = (
    '- server/discover -> "some"',
    'A append("eggs") -> ["milk", "eggs"]',
    'B read() -> ["call Ada"]',
    "- read() -> refused: -31044 Session required",
    "H count() five times -> [1, 2, 3, 4, 5]",
    "C count() at the same moment -> [6]",
    "C count() -> 7",
    'A read() -> ["milk", "eggs"]',
    "A sessions/delete -> deleted",
    "A read() -> refused: -32043 Session not found",
    'B append("call Bob") -> ["call Ada", "call Bob"]',
)


def run_demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The demo as a command."""
    command = [sys.executable, str(EXAMPLES / "demo.py"), *arguments]
    return subprocess.run(command, capture_output=True, encoding="utf-8", timeout=120, check=False)


def copied(folder: Path, name: str, old: str, new: str) -> list[str]:
    """Both servers in another folder, one of them changed, as the demo's arguments."""
    for source in ("counter.py", "notebook.py"):
        text = (EXAMPLES / source).read_text("utf-8")
        if source == name:
            assert old in text
            text = text.replace(old, new)
        (folder / source).write_text(text, "utf-8")
    return ["--servers", str(folder)]


@pytest.fixture(scope="module")
def done() -> subprocess.CompletedProcess[str]:
    """One run of the demo as it is."""
    return run_demo()


def test_the_demo_tells_its_story(done: subprocess.CompletedProcess[str]) -> None:
    """Every step of it is told in plain text, in order, and it ends well; no part of a session id is shown."""
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(ADDED)
    assert done.stdout.endswith("\nEverything came back as it should.\n")
    assert "\x1b" not in done.stdout
    assert "eyJ" not in done.stdout
    told = re.sub(r" +", " ", done.stdout)
    places = [told.find(step) for step in TOLD]
    assert -1 not in places
    assert places == sorted(places)


def test_each_address_is_served_by_one_process_after_another(done: subprocess.CompletedProcess[str]) -> None:
    """A restarted server has another process and the address of the one before."""
    served = re.findall(r"(counter|notebook) +process (\d+) serves (\S+)", done.stdout)
    assert len({number for _, number, _ in served}) == 3
    assert len({(name, url) for name, _, url in served}) == 2


def test_a_server_that_loses_notes_is_found_out(tmp_path: Path) -> None:
    """The demo says what it expected and what came instead, and its exit status tells a script."""
    done = run_demo(*copied(tmp_path, "notebook.py", '[*session.state.get("notes", []), note]', "[note]"))
    assert done.returncode == 1
    assert done.stdout.endswith('notebook, session A, append("eggs"): expected ["milk", "eggs"], and got ["eggs"]\n')


def test_a_server_that_does_not_start_is_found_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What it said is shown."""
    arguments = copied(tmp_path, "notebook.py", "mcp = MCPServer", "mcp = NoSuchServer")
    assert demo.main(arguments) == 1
    assert "name 'NoSuchServer' is not defined" in capsys.readouterr().out


def test_a_server_that_is_never_ready_is_given_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The demo ends by itself."""
    hanging = "import threading\n\nthreading.Event().wait()\nmcp = MCPServer"
    assert demo.main(copied(tmp_path, "notebook.py", "mcp = MCPServer", hanging), limit=1) == 1
    assert capsys.readouterr().out.endswith("not at the end of the story after 1 seconds\n")
