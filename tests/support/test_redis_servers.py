"""The servers that tests start: what is missing is said, and nothing is left behind."""

from __future__ import annotations

import pytest
import redis
import redis_servers
from redis_servers import PROGRAM, DidNotStart, program, serving

import debian


def missing(program: str) -> None:
    raise debian.NotInstalled(f"{program} is missing")


def test_a_program_that_is_missing_skips_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """On somebody's own machine."""
    monkeypatch.setattr(debian, "install", missing)
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="Redis cannot be tested: redis-server is missing"):
        program.__wrapped__()


def test_a_program_that_is_missing_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """And another one may be named."""
    monkeypatch.setattr(debian, "install", missing)
    monkeypatch.setenv("CI", "true")
    monkeypatch.setenv(PROGRAM, "valkey-server")
    with pytest.raises(pytest.fail.Exception, match="Redis cannot be tested: valkey-server is missing"):
        program.__wrapped__()


def test_a_server_that_does_not_start_says_why() -> None:
    """In its own words."""
    with pytest.raises(DidNotStart, match="no-such-option"):
        serving(no_such_option="yes").__enter__()


def test_a_server_is_gone_with_its_files_when_the_test_is() -> None:
    """Also one that was frozen."""
    with serving() as server:
        assert server.folder.exists()
        assert server.command("PING") == b"PONG"
        server.stop()
    assert not server.folder.exists()
    with pytest.raises(redis.ConnectionError):
        server.command("PING")


def test_a_server_that_does_not_come_up_is_not_waited_for_for_ever() -> None:
    """Though for long: machines may be busy."""
    with pytest.raises(AssertionError, match="a server did not come up"):
        redis_servers._wait_for(lambda: False, patience=0)
