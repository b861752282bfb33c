"""What tests rely on: the servers that they start, and what is said where one is missing."""

import os
import subprocess
import sys
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import pytest
import redis_servers
from environments import program

import debian

FAILS = "#!/bin/sh\nexit 1\n"


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")  # since Python 3.12
def test_a_forked_process_leaves_servers_running() -> None:
    """A fork drops what it inherits: since Python 3.13 it clears `atexit`, which leaves the blocks of servers."""
    serving = redis_servers.serving()
    server = serving.__enter__()
    try:
        child = get_context("fork").Process(target=partial(serving.__exit__, None, None, None))
        child.start()
        child.join(20)
        assert child.exitcode == 0
        assert server.folder.exists()
        assert server.answers()
    finally:
        serving.__exit__(None, None, None)


@pytest.mark.parametrize(("ci", "outcome"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_a_missing_server_fails_in_ci(ci: str, outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere the test is skipped, with the package to install as the reason."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match="redis-server is missing: apt-get install redis-server"):
        program("redis-server")


@pytest.mark.parametrize(("apt_get", "ci", "code"), [(None, "true", 1), (FAILS, "true", 1), (FAILS, "", 0)])
def test_set_up_says_which_servers_are_missing(apt_get: str | None, ci: str, code: int, tmp_path: Path) -> None:
    """In CI it fails then; elsewhere it says that tests are skipped."""
    if apt_get is not None:
        (tmp_path / "apt-get").write_text(apt_get, "utf-8")
        (tmp_path / "apt-get").chmod(0o755)
    environment = {**os.environ, "PATH": str(tmp_path), "CI": ci}
    command = [sys.executable, debian.__file__, "redis-server"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (code, "")
    assert "redis-server" in done.stdout
    assert ("skipped" in done.stdout) is not bool(ci)


def test_set_up_installs_nothing_if_it_is_to_skip_servers(tmp_path: Path) -> None:
    (tmp_path / "apt-get").write_text("#!/bin/sh\ntouch installed\n", "utf-8")
    (tmp_path / "apt-get").chmod(0o755)
    environment = {**os.environ, "PATH": str(tmp_path), "CI": "", "SKIP_SERVERS": "1"}
    command = [sys.executable, debian.__file__, "redis-server"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, "SKIP_SERVERS is set" in done.stdout) == (0, True)
    assert not (tmp_path / "installed").exists()
