"""`redis_servers`: a missing program is reported, and servers leave nothing behind."""

from __future__ import annotations

import pytest
import redis
import redis_servers
from redis_servers import PROGRAM, DidNotStart, program, serving

import debian


def missing(program: str) -> None:
    raise debian.NotInstalled(f"{program} is missing")


@pytest.mark.parametrize("named", ["redis-server", "valkey-server"])
def test_a_missing_program_is_reported(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program that the environment names, or redis-server, is reported as missing."""
    monkeypatch.setattr(debian, "install", missing)
    monkeypatch.setenv("CI", "true")
    monkeypatch.setenv(PROGRAM, "" if named == "redis-server" else named)
    with pytest.raises(pytest.fail.Exception, match=f"Redis cannot be tested: {named} is missing"):
        program.__wrapped__()


def test_a_failed_start_reports_why() -> None:
    """The error of a server that does not start holds its log."""
    with pytest.raises(DidNotStart, match="no-such-option"):
        serving(no_such_option="yes").__enter__()


def test_a_server_is_gone_after_the_test() -> None:
    """A server and its files are gone after the block, even if it was frozen."""
    with serving() as server:
        assert server.folder.exists()
        assert server.command("PING") == b"PONG"
        server.stop()
    assert not server.folder.exists()
    with pytest.raises(redis.ConnectionError):
        server.command("PING")


def test_waiting_for_a_server_ends() -> None:
    """Waiting for a server that does not come up ends with an error."""
    with pytest.raises(AssertionError, match="a server did not come up"):
        redis_servers._wait_for(lambda: False, patience=0)
