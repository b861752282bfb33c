"""Whether a SQLite file lies where other users of the machine can neither replace nor change it.

Whoever owns the folder can, and so can the administrator: they are trusted. Who may read the file is up to its owner.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from .._errors import ConfigurationError


def check_private(path: str) -> None:
    """Look at a file, its log and its index, as far as they are there, and at their folder; follow no link to them.

    Raises:
        ConfigurationError: Another user may replace or change them; the message names the remedy.
    """
    if os.name != "posix":  # pragma: no cover  # elsewhere modes say nothing
        return
    folder = Path(path).parent.stat()
    if folder.st_mode & stat.S_IWOTH:
        raise ConfigurationError(
            f"every user of the machine can write to the folder of the SQLite file {path!r} and replace it; "
            "give it a folder of its own, as in: mkdir -m 700 sessions"
        )
    for part in (path, f"{path}-wal", f"{path}-shm"):
        try:
            found = os.lstat(part)
        except FileNotFoundError:
            continue
        if not stat.S_ISREG(found.st_mode):
            raise ConfigurationError(f"{part!r} is a link or no file; the store needs a file, and follows no link")
        if found.st_mode & stat.S_IWOTH or found.st_uid not in {0, os.geteuid(), folder.st_uid}:
            raise ConfigurationError(
                f"another user of the machine can change {part!r}: it must belong to the server's user, the "
                "administrator or the owner of its folder, and nobody else may write to it (chmod o-w)"
            )
