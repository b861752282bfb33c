"""`make demo-cluster`: a cluster whose servers are replaced under load, and a check that would see what went wrong."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pytest
from example_servers import EXAMPLES
from mcp import MCPError

import cluster
import debian
import demo_cluster

TOLD = (
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


MEASURED = "COVERAGE_PROCESS_CONFIG"  # makes processes that are started be measured, which takes its time


def run_demo(*arguments: str, measured: bool = False, **environment: str) -> subprocess.CompletedProcess[str]:
    """The demo as a command."""
    command = [sys.executable, str(EXAMPLES / "demo_cluster.py"), *arguments]
    inherited = {name: value for name, value in os.environ.items() if measured or name != MEASURED}
    return subprocess.run(
        command, capture_output=True, encoding="utf-8", timeout=180, check=False, env={**inherited, **environment}
    )


def left_by(mark: str) -> list[str]:
    """The processes that were started by who had a mark in its environment, which they inherit."""
    return [path.parent.name for path in Path("/proc").glob("[0-9]*/environ") if mark.encode() in environ(path)]


def environ(path: Path) -> bytes:
    """A process's environment, if it is still there."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def changed(folder: Path, *changes: tuple[str, str]) -> list[str]:
    """The server in another folder, changed, as the demo's arguments."""
    text = (EXAMPLES / "cluster_counter.py").read_text("utf-8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / "cluster_counter.py").write_text(text, "utf-8")
    return ["--servers", str(folder)]


def run_here(*arguments: str, limit: float = 110) -> int:
    """The demo in a thread of its own: a tracer loses its place in the thread in which an event loop is torn down."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(demo_cluster.main, arguments, limit=limit).result()


def test_the_demo_tells_its_story_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At least a thousand calls, eight workers, new keys, and no answer that was wrong; no part of an id is shown."""
    mark = uuid4().hex
    monkeypatch.setenv("STARTED_BY", mark)
    monkeypatch.delenv(MEASURED, raising=False)
    status, said = run_here(), capsys.readouterr()
    assert (status, said.err, left_by(mark)) == (0, "", []), said.out
    assert said.out.endswith("\nNo session was lost, and every answer was right.\n")
    assert "eyJ" not in said.out
    told = re.sub(r" +", " ", said.out)
    places = [told.find(step) for step in TOLD]
    assert -1 not in places
    assert places == sorted(places)
    (calls, sessions, deleted) = re.findall(r"(\d+) calls in (\d+) sessions, of which (\d+) were deleted", told)[0]
    assert int(calls) >= 1000
    assert int(sessions) == int(deleted) > 10
    assert len(set(re.findall(r"(?:first|second) process (\d+) listens", told))) == 4
    assert int(re.findall(r"served by (\d+) processes", told)[0]) >= 4


def test_servers_that_share_nothing_are_found_out(tmp_path: Path) -> None:
    """Numbers that come twice are named, and keys that were not changed; nothing is left. One worker each will do."""
    once = 'open(os.environ["MCP_SESSION_KEYS"].removeprefix("file:")).read().split()[0]'
    unshared = ('os.environ["MCP_SESSION_STORE"]', '"memory:"'), ('os.environ["MCP_SESSION_KEYS"]', once)
    mark = uuid4().hex
    done = run_demo("--workers", "1", "--calls", "1", *changed(tmp_path, *unshared), STARTED_BY=mark)
    assert (done.returncode, left_by(mark)) == (1, [])
    assert "\na new session is still signed with the old key\n" in done.stdout
    assert "\ntwo updates came to the same number\n    add in " in done.stdout


def test_the_command_says_what_may_be_asked_of_it() -> None:
    """As every command."""
    done = run_demo("--help", measured=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "--workers NUMBER" in done.stdout


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not even start has nothing to finish."""
    monkeypatch.setattr(cluster, "PATIENCE", 0.2)
    monkeypatch.delenv(MEASURED, raising=False)


@pytest.mark.usefixtures("impatient")
def test_a_server_that_does_not_start_is_found_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What it said is shown."""
    assert run_here(*changed(tmp_path, ("mcp = MCPServer", "mcp = NoSuchServer")), limit=110) == 1
    assert "name 'NoSuchServer' is not defined" in capsys.readouterr().out


@pytest.mark.usefixtures("impatient")
def test_a_server_that_is_never_ready_is_given_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The demo ends by itself."""
    hanging = "import threading\n\nthreading.Event().wait()\nmcp = MCPServer"
    assert run_here(*changed(tmp_path, ("mcp = MCPServer", hanging)), limit=2) == 1
    assert capsys.readouterr().out.endswith("not at the end of the story after 2 seconds\n")


async def test_a_call_that_fails_is_not_taken_for_a_refusal() -> None:
    """It is noted, and nobody knows what came of it."""

    async def failing() -> int:
        raise MCPError(-32603, "Session store unavailable")

    load = demo_cluster.Load()
    await load.attempt("count in A", load.ask("add", "A", failing()))
    assert load.failures == ["count in A: Session store unavailable"]
    assert [each.outcome for each in load.recorder.operations] == ["unknown"]


def test_a_missing_program_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """With the command that installs it, for who may not do it here."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(debian, "SYSTEM", "")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert demo_cluster.main([]) == 1
    assert capsys.readouterr().out.endswith("only root can install it: apt-get install redis-server\n")
