"""`Feed`: what a worker knows reaches every reader, and a reader that is slow, dead or false harms nothing."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from reading import PATIENCE, Reader

from mcp_sessions.telemetry import _feed as feeds
from mcp_sessions.telemetry._feed import Began, Board, Call, Created, Ended, Feed, LiveSession, Refused, Worker, sockets

WORKER = "host:1"
REF = "ses_a"


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder with room for a long name: the path of a socket has some 100 characters."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def created(ref: str = REF, expires_at: float = 100) -> Created:
    return Created(worker=WORKER, ref=ref, at=1, expires_at=expires_at)


def call(number: int = 1, ref: str | None = REF, **more: Any) -> Call:
    return Call(worker=WORKER, call=f"{number}", ref=ref, at=2, name="ping", seconds=0.5, **more)


def began(number: int = 1, ref: str | None = REF, worker: str = WORKER) -> Began:
    return Began(worker=worker, call=f"{number}", ref=ref, at=2, name="ping", client="shop 1")


def session(ref: str = REF) -> LiveSession:
    return LiveSession(worker=WORKER, ref=ref, at=1, created_at=1, expires_at=100)


def test_a_board_knows_what_lives_and_what_runs() -> None:
    board = Board()
    for event in (Worker(worker=WORKER), created(), began(1), began(2, None), began(3, worker="host:2"), call(1)):
        board.apply(event)
    assert [*board.running] == ["2", "3"]
    board.forget("host:2")
    assert [*board.running] == ["2"]
    (live,) = board.live(99)
    assert (live.ref, live.at, live.client, live.error) == (REF, 2.5, "shop 1", None)
    assert board.live(100) == []
    board.apply(call(4, error="-32043", reason="expired"))
    board.apply(call(5))
    assert board.sessions[REF].error == "expired"  # the last one
    board.apply(Refused(worker=WORKER, ref=REF, at=3, reason="body_too_large"))
    assert board.sessions[REF].error == "body_too_large"
    board.apply(Ended(worker=WORKER, ref=REF, at=4, reason="deleted", seconds=3))
    board.apply(session())  # from a worker that has not seen its end
    assert board.live(0) == []
    assert len(board.history) == 6


def test_a_board_has_bounds() -> None:
    board = Board()
    for number in range(1_100):
        board.apply(session(f"ses_{number}"))
        board.apply(call(number))
    assert (len(board.sessions), len(board.history)) == (1_000, 200)
    assert "ses_0" not in board.sessions
    for number in range(1_100):
        board.apply(Ended(worker=WORKER, ref=f"ses_{number}", at=1, reason="deleted", seconds=1))
    board.apply(session("ses_0"))  # its end is forgotten
    board.apply(session("ses_1099"))
    assert [*board.sessions] == ["ses_0"]


def test_several_readers_see_the_same(tmp_path: Path) -> None:
    feed = Feed(str(tmp_path / "made" / "here"), lambda: 5)
    assert feed.open()
    assert not feed.open()
    assert feed.directory.stat().st_mode & 0o777 == 0o700
    feed.send(created())
    readers = [Reader(feed.directory) for _ in range(2)]
    for event in (began(), call()):
        feed.send(event)
    feed.close()
    assert sockets(feed.directory) == set()
    first, second = ([event["event"] for event in reader.rest()] for reader in readers)
    assert first == second == ["session", "created", "began", "call"]
    feed.close()
    assert feed.open()  # as a server that starts again
    feed.close()


def test_a_reader_that_left_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where nothing happens: an empty line finds it."""
    monkeypatch.setattr(feeds, "_KEEPALIVE", 0.01)
    feed = Feed(str(tmp_path), lambda: 5)
    feed.open()
    threads = {*threading.enumerate()}
    reader = Reader(tmp_path)
    (serving,) = {*threading.enumerate()} - threads
    reader.leave()
    until = time.monotonic() + PATIENCE
    while serving.is_alive():
        assert time.monotonic() < until
        time.sleep(0.01)
    feed.close()


def test_a_reader_that_falls_behind_is_disconnected(tmp_path: Path) -> None:
    """The worker goes on at once; what had been sent is all that the reader gets."""
    feed = Feed(str(tmp_path), lambda: 5)
    feed.open()
    reader = Reader(tmp_path)
    for number in range(20_000):  # far more than are kept for it and on the way to it
        feed.send(call(number, client="c" * 200))
    assert 0 < len(reader.rest()) < 20_000
    feed.close()


def test_the_default_directory_is_its_user_s_own(
    short_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By the inspector's address, below a directory in which all may write: one that others may enter is not used."""
    monkeypatch.setattr(tempfile, "tempdir", str(short_path))
    folder = short_path / f"mcp-sessions-{os.geteuid()}-127.0.0.1:8787"
    folder.mkdir(mode=0o755)
    feed = Feed("127.0.0.1:8787", lambda: 5)
    assert feed.directory == folder
    feed.open()
    assert sockets(folder) == set()
    assert "it belongs to another user, or others may enter it" in caplog.text
    feed.close()
    folder.chmod(0o700)
    feed.open()
    assert len(sockets(folder)) == 1
    feed.close()


def test_a_directory_that_is_not_there_has_no_workers(tmp_path: Path) -> None:
    assert sockets(tmp_path / "none") == set()


def test_a_socket_appears_when_it_can_be_connected(tmp_path: Path) -> None:
    """Under another name before that, since readers take away a socket where nothing listens."""
    with socket.socket(socket.AF_UNIX) as early:
        early.bind(str(tmp_path / "1-a.new"))
        assert sockets(tmp_path) == set()
