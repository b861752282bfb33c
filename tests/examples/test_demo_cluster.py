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
    "A store, two servers with two workers each, and one address for both",
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


def run_demo(*arguments: str, measured: bool) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """The demo as a command, and the processes that it left."""
    mark = uuid4().hex  # inherited by whatever it starts
    command = [sys.executable, str(EXAMPLES / "demo_cluster.py"), *arguments]
    inherited = {name: value for name, value in os.environ.items() if measured or name != MEASURED}
    environment = {**inherited, "STARTED_BY": mark}
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=180, check=False, env=environment)
    left = [path.parent.name for path in Path("/proc").glob("[0-9]*/environ") if mark.encode() in environ(path)]
    return done, left


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


def test_the_demo_tells_its_story_and_leaves_nothing() -> None:
    """At least a thousand calls, eight workers, new keys, and no answer that was wrong; no part of an id is shown."""
    done, left = run_demo(measured=True)
    assert (done.returncode, done.stderr, left) == (0, "", []), done.stdout
    assert done.stdout.endswith("\nNo session was lost, and every answer was right.\n")
    assert "eyJ" not in done.stdout
    told = re.sub(r" +", " ", done.stdout)
    places = [told.find(step) for step in TOLD]
    assert -1 not in places
    assert places == sorted(places)
    (calls, sessions, deleted) = re.findall(r"(\d+) calls in (\d+) sessions, of which (\d+) were deleted", told)[0]
    assert int(calls) >= 1000
    assert int(sessions) == int(deleted) > 10
    assert len(set(re.findall(r"(?:first|second) process (\d+) listens", told))) == 4
    assert int(re.findall(r"served by (\d+) processes", told)[0]) >= 4


def test_servers_that_share_nothing_are_found_out(tmp_path: Path) -> None:
    """Numbers that come twice are named, and that the keys were not changed; and nothing is left."""
    once = 'open(os.environ["MCP_SESSION_KEYS"].removeprefix("file:")).read().split()[0]'
    unshared = ('os.environ["MCP_SESSION_STORE"]', '"memory:"'), ('os.environ["MCP_SESSION_KEYS"]', once)
    done, left = run_demo(*changed(tmp_path, *unshared), measured=False)
    assert (done.returncode, left) == (1, [])
    assert "\na new session is still signed with the old key\n" in done.stdout
    assert "\ntwo updates came to the same number\n    add in " in done.stdout


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not even start has nothing to finish."""
    monkeypatch.setattr(cluster, "PATIENCE", 0.2)
    monkeypatch.delenv(MEASURED, raising=False)


def run_here(*arguments: str, limit: float) -> int:
    """The demo in a thread of its own: a tracer loses its place in the thread in which an event loop is torn down."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(demo_cluster.main, arguments, limit=limit).result()


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
