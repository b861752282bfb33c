"""Where a SQLite file lies: paths that are refused with their remedy, and how an empty file comes to be there."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mcp_sessions._errors import ConfigurationError
from mcp_sessions.stores import _sqlite_file as sqlite_file
from mcp_sessions.stores._sqlite import SQLiteStore


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


# --- other users of the machine -------------------------------------------------------------------


def link(path: Path) -> None:
    path.rename(path.with_suffix(".real"))
    path.symlink_to(path.with_suffix(".real"))


def foreign_log(path: Path) -> None:
    (log := Path(f"{path}-wal")).touch(mode=0o600)
    os.chown(log, 4711, -1)


OTHERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a folder that all may write to": (lambda path: path.parent.chmod(0o777), "mkdir -m 700"),
    "as /tmp is": (lambda path: path.parent.chmod(0o1777), "mkdir -m 700"),
    "a link": (link, "follows no link"),
    "a link in place of the log": (lambda path: Path(f"{path}-wal").symlink_to(path), "follows no link"),
    "a folder in place of the index": (lambda path: Path(f"{path}-shm").mkdir(), "follows no link"),
    "a file that all may write to": (lambda path: path.chmod(0o602), "chmod o-w"),
    "a file of another user": (lambda path: os.chown(path, 4711, -1), "chmod o-w"),
    "a log of another user": (foreign_log, "chmod o-w"),
}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize(("change", "remedy"), OTHERS.values(), ids=OTHERS)
async def test_what_another_user_could_change_is_not_opened(
    change: Callable[[Path], object], remedy: str, tmp_path: Path
) -> None:
    """Nor is anything of it deleted or followed."""
    folder = tmp_path / "sessions"
    folder.mkdir(mode=0o700)
    (path := folder / "sessions.db").touch(mode=0o600)
    change(path)
    before = beside(str(path))
    with pytest.raises(ConfigurationError, match=remedy):
        await SQLiteStore(path).open()
    assert beside(str(path)) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
async def test_the_owner_of_the_folder_may_own_the_file(tmp_path: Path) -> None:
    """As where an administrator looks at a service's sessions: that user could replace the file anyway."""
    (path := tmp_path / "sessions.db").touch(mode=0o640)
    for one in (tmp_path, path):
        os.chown(one, 4711, -1)
    store = SQLiteStore(path)
    await store.open()
    await store.close()
