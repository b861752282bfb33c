"""Where a SQLite file lies: paths that are refused with their remedy, and how an empty file comes to be there."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from mcp_sessions._errors import ConfigurationError
from mcp_sessions.stores import _sqlite_file as sqlite_file


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "sessions.db")


def beside(path: str) -> list[str]:
    """What lies in the file's folder."""
    return sorted(found.name for found in Path(path).parent.iterdir())


@pytest.mark.parametrize(
    ("path", "remedy"),
    [
        *((path, "takes the path of a file") for path in (None, 5, b"sessions.db", object())),
        *((path, "use store='memory:'") for path in ("", ":memory:", "file:sessions.db?mode=ro", "a\0b")),
        ("/", "is a folder; name a file in it"),
        ("/missing/sessions.db", "does not exist; create it"),
    ],
)
def test_a_path_that_cannot_be_a_file_is_refused(path: object, remedy: str) -> None:
    """With the remedy. No folder is created: a mistyped path would be a new, empty store."""
    with pytest.raises(ConfigurationError, match=remedy):
        sqlite_file.checked_path(path)


def test_a_path_is_absolute_from_then_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server may change its folder later."""
    monkeypatch.chdir(tmp_path)
    assert sqlite_file.checked_path("sessions.db") == str(tmp_path / "sessions.db")
    assert sqlite_file.checked_path(Path("a?b.db")) == str(tmp_path / "a?b.db")


def test_a_database_is_told_by_its_file_and_its_log(path: str) -> None:
    """Another file at the same place is another database; none is none."""
    assert sqlite_file.identify(path) is None
    Path(path).touch()
    alone = sqlite_file.identify(path)
    Path(path + "-wal").touch()
    both = sqlite_file.identify(path)
    assert alone is not None
    assert both is not None
    assert (alone.file, alone.log) == (both.file, None) != (both.file, both.log)
    Path(path + "-2").touch()
    Path(path + "-2").replace(path)
    replaced = sqlite_file.identify(path)
    assert replaced is not None
    assert replaced.file != both.file
    assert sqlite_file.identify(path + "/below") is None


def test_a_new_file_can_be_read_by_its_owner_alone(path: str) -> None:
    """Whatever the process's mask says; there is no moment at which it was otherwise."""
    before = os.umask(0)
    try:
        sqlite_file.create_owner_only(path)
    finally:
        os.umask(before)
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert beside(path) == ["sessions.db"]


def test_a_file_that_is_there_stays_as_it_is(path: str) -> None:
    """Its mode too, which an operator may have chosen."""
    Path(path).write_bytes(b"content")
    Path(path).chmod(0o640)
    sqlite_file.create_owner_only(path)
    assert Path(path).read_bytes() == b"content"
    assert os.stat(path).st_mode & 0o777 == 0o640


def test_the_log_of_a_file_that_is_gone_goes_too(path: str) -> None:
    """SQLite would read it into the new file."""
    for part in ("-wal", "-shm"):
        Path(path + part).write_bytes(b"old")
    sqlite_file.create_owner_only(path)
    assert beside(path) == ["sessions.db"]


def test_one_process_at_a_time_makes_the_file(path: str) -> None:
    """Who comes second is told to try again, in the words of SQLite; it touches nothing."""
    Path(path + "-new").touch()
    Path(path + "-wal").touch()
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        sqlite_file.create_owner_only(path)
    assert beside(path) == ["sessions.db-new", "sessions.db-wal"]


def test_who_died_while_making_it_is_not_waited_for(path: str) -> None:
    """After a while another one takes over."""
    Path(path + "-new").touch()
    os.utime(path + "-new", (0, 0))
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        sqlite_file.create_owner_only(path)
    sqlite_file.create_owner_only(path)
    assert beside(path) == ["sessions.db"]


def test_a_file_that_was_made_meanwhile_is_not_replaced(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By another process, between the look and the turn: what it holds is kept, and so is its log."""
    really = os.open

    def late(*args: Any) -> int:
        for part in ("", "-wal"):
            Path(path + part).write_bytes(b"another's")
        return really(*args)

    monkeypatch.setattr(os, "open", late)
    sqlite_file.create_owner_only(path)
    monkeypatch.undo()
    assert Path(path).read_bytes() == Path(path + "-wal").read_bytes() == b"another's"
    assert "sessions.db-new" not in beside(path)
