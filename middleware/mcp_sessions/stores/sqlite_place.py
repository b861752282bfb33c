"""Where a SQLite file lies: which file it is, and how an empty one comes to be there.

The file and its write-ahead log are told apart from others by device and inode. A database that exists is
never opened here: closing it again would drop the locks that SQLite holds in the same process.
Sources: sqlite.org, "How To Corrupt An SQLite Database File", sections 2.2 and 4.
"""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..errors import ConfigurationError

_STALE: Final = 10  # seconds after which whoever makes a file must have died

Inode = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Identity:
    """A database as it lies on the disk.

    Args:
        file: Device and inode.
        log: Those of its write-ahead log, or None where there is none.
    """

    file: Inode
    log: Inode | None


def checked(path: object) -> str:
    """The absolute path of a file that could be made or opened.

    Raises:
        ConfigurationError: It could not; the message says the remedy.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise ConfigurationError("SQLiteStore takes the path of a file, as in SQLiteStore('/var/lib/app/sessions.db')")
    given = os.fspath(path)
    if not isinstance(given, str) or not given or given.startswith((":", "file:")) or "\0" in given:
        raise ConfigurationError(
            "SQLiteStore takes the path of a file, as in '/var/lib/app/sessions.db'; without one, use store='memory:'"
        )
    place = Path(given).absolute()
    if _is_folder(place):
        raise ConfigurationError(f"the SQLite path {given!r} is a folder; name a file in it, as in 'sessions.db'")
    if not _is_folder(place.parent):
        raise ConfigurationError(f"the folder of the SQLite path {given!r} does not exist; create it, or give another")
    return str(place)


def _is_folder(path: Path) -> bool:
    return os.path.isdir(path)  # noqa: PTH112  # where a name is too long, Path.is_dir raises


def find(path: str) -> Identity | None:
    """The database that lies there now, or None.

    Raises:
        OSError: It cannot be told.
    """
    file = inode(path)
    return None if file is None else Identity(file, inode(f"{path}-wal"))


def inode(path: str) -> Inode | None:
    """Which file lies there, or None.

    Raises:
        OSError: It cannot be told.
    """
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


def make_private(path: str) -> None:
    """Make an empty file that nobody else may read, where there is none.

    What is left of a file that was there before is removed first, or SQLite would take its log for the new
    one's. One process at a time does this: who finds `-new` there waits for who made it.

    Raises:
        sqlite3.OperationalError: Another process is about to make it; to be tried again.
        OSError: It cannot be made.
    """
    if inode(path) is not None:
        return
    new = Path(f"{path}-new")
    try:
        os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        _remove_stale(new)
        raise sqlite3.OperationalError("the file is locked by who makes it") from None
    if inode(path) is not None:  # it was made in between
        new.unlink()
        return
    for part in ("-wal", "-shm"):
        Path(path + part).unlink(missing_ok=True)
    new.rename(path)


def _remove_stale(new: Path) -> None:
    with suppress(FileNotFoundError):
        if new.stat().st_mtime + _STALE < time.time():
            new.unlink()
