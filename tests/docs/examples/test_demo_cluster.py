"""`demo_cluster.py`: a cluster whose servers are replaced under load, with a check of the recorded history."""

from __future__ import annotations

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from example_servers import EXAMPLES, assert_in_order
from mcp import MCPError

import cluster
import debian
import demo_cluster
from timeline import Timeline

STEPS = (
    "A store, two servers with 2 workers each, and one address for both",
    "The first server and both its workers are replaced",
    "key file new, old: the new key signs, the old one still counts",
    "servers sign with the new key",
    "The second server and both its workers are replaced",
    "What came of it",
    "history 0 calls refused in a session that lived",
    "history 0 calls accepted in a session that was deleted",
    "history 0 calls missed, or counted twice",
    "history 0 calls that failed",
)


MEASURED = "COVERAGE_PROCESS_CONFIG"  # has subprocesses measured, which takes time


def left_by(mark: str) -> list[str]:
    """Return the processes that inherited a mark in their environment."""
    return [path.parent.name for path in Path("/proc").glob("[0-9]*/environ") if mark.encode() in environ(path)]


def environ(path: Path) -> bytes:
    """Read a process's environment, if it is still there."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def changed(folder: Path, *changes: tuple[str, str]) -> list[str]:
    """Write a changed server to a folder, and return the demo's arguments."""
    text = (EXAMPLES / "cluster_counter.py").read_text("utf-8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / "cluster_counter.py").write_text(text, "utf-8")
    return ["--servers", str(folder)]


def run_here(*arguments: str, limit: float = 110) -> int:
    """Run the demo in a thread: a tracer loses its place in a thread whose event loop is torn down."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(demo_cluster.main, arguments, limit=limit).result()


@pytest.mark.nightly
def test_the_demo_prints_every_step_and_leaves_no_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Hundreds of calls over replaced workers and new keys get right answers, and no id is shown."""
    mark = uuid4().hex
    monkeypatch.setenv("STARTED_BY", mark)
    monkeypatch.delenv(MEASURED, raising=False)
    status, captured = run_here("--calls", "300"), capsys.readouterr()
    assert (status, captured.err, left_by(mark)) == (0, "", []), captured.out
    assert captured.out.endswith("\nNo session was lost, and every answer was right.\n")
    assert "eyJ" not in captured.out
    printed = re.sub(r" +", " ", captured.out)
    assert_in_order(printed, STEPS)
    (calls, sessions, deleted) = re.findall(r"(\d+) calls in (\d+) sessions, of which (\d+) were deleted", printed)[0]
    assert int(calls) >= 300
    assert int(sessions) == int(deleted) > 10
    assert len(set(re.findall(r"(?:first|second) process (\d+) listens", printed))) == 4
    assert int(re.findall(r"served by (\d+) processes", printed)[0]) >= 4


async def test_a_number_that_comes_twice_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    """As where servers share nothing: the story ends with what differs."""

    async def one() -> int:
        return 1

    cluster: Any = None
    story = demo_cluster.Story(cluster, Timeline(sys.stdout), calls=1)
    for _ in range(2):
        await story._load.ask("add", "A", one())
    assert story._conclude().startswith("two updates came to the same number\n    add in A")
    assert "2 calls missed, or counted twice" in capsys.readouterr().out


def test_the_command_has_a_help_text() -> None:
    command = [sys.executable, str(EXAMPLES / "demo_cluster.py"), "--help"]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "--workers NUMBER" in done.stdout


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give servers that do not start no time to stop."""
    monkeypatch.setattr(cluster, "PATIENCE", 0.2)
    monkeypatch.delenv(MEASURED, raising=False)


@pytest.mark.nightly
@pytest.mark.usefixtures("impatient")
def test_a_server_that_does_not_start_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The output of a server that does not start is shown."""
    assert run_here(*changed(tmp_path, ("mcp = MCPServer", "mcp = NoSuchServer"))) == 1
    assert "name 'NoSuchServer' is not defined" in capsys.readouterr().out


@pytest.mark.usefixtures("impatient")
def test_a_server_that_is_never_ready_ends_the_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hanging = "import threading\n\nthreading.Event().wait()\nmcp = MCPServer"
    assert run_here(*changed(tmp_path, ("mcp = MCPServer", hanging)), limit=0.5) == 1
    assert capsys.readouterr().out.endswith("not at the end of the story after 0.5 seconds\n")


async def test_a_failed_call_is_not_a_refusal() -> None:
    """A failed call is reported, and recorded with an unknown outcome."""

    async def failing() -> int:
        raise MCPError(-32603, "Session store unavailable")

    load = demo_cluster.Load()
    await load.attempt("count in A", load.ask("add", "A", failing()))
    assert load.failures == ["count in A: Session store unavailable"]
    assert [each.outcome for each in load.recorder.operations] == ["unknown"]


def test_a_missing_program_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The command that installs the missing program is printed."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(debian, "SYSTEM", "")
    assert demo_cluster.main([]) == 1
    assert capsys.readouterr().out.endswith("redis-server is missing: apt-get install redis-server\n")
