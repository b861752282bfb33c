"""Private files: only this process's user and the administrator can change or replace them.

One rule for key files, SQLite stores and the client's storage. The file, what SQLite keeps beside it, and their folder
belong to one of the two, and no other user may write to them. Links on the way are followed only if no other user can
change them. The folders further up belong to the two as well, or to the owner of "/". If others may write to one, as to
volumes of containers, that is only logged: without the sticky bit they can put another folder of the same owner in its
place, or exchange folders during a check. ACLs count as far as the mode shows them, as POSIX ACLs do; those of NFS 4
do not.
Source: OpenSSH's StrictModes, with Debian's exception for the groups that each user has alone.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Final

from ._errors import ConfigurationError

with suppress(ImportError):  # on Windows
    import grp
    import pwd

logger: Final = logging.getLogger("mcp_sessions")

_ROOT: Final = 0
_OPEN: Final = "/proc/self/fd"  # on Linux
_MAX_LINKS: Final = 40  # as in Linux
SQLITE_ENDS: Final = ("-wal", "-shm", "-journal")
"""The ends of the names of what SQLite reads beside a file: its log, the index of that, and a journal to roll back."""
_ACL: Final = "system.posix_acl_access"


def require_posix(what: str, remedy: str) -> None:
    """Refuse what trusts a file on a system whose owners and modes do not say who can write to it.

    Raises:
        ConfigurationError: The system is not POSIX.
    """
    if os.name != "posix":
        raise ConfigurationError(
            f"{what} is not supported on Windows, where neither owner nor mode says who can change a file; {remedy}"
        )


def check_private(path: str, *, beside: Sequence[str] = (), tightens: bool = False) -> None:
    """Refuse a file, existing or not, that others can change or replace; it is no link.

    Args:
        path: The absolute path of the file.
        beside: The ends of the names of further files beside it, to which the same applies.
        tightens: Whether the caller makes the modes stricter, so that they do not count in a folder that no other
            user may enter.

    Raises:
        ConfigurationError: Another user could write there; the message has the remedy.
        OSError: It cannot be looked at.
    """
    folder, name = os.path.split(path)
    place = os.path.join(_followed(folder), name)  # noqa: PTH118
    with _checked_folder(place) as (opened, is_entered):
        for end in ("", *beside):
            try:
                found = os.lstat(name + end, dir_fd=opened)
            except FileNotFoundError:
                continue
            _check_file(place + end, found, by_mode=is_entered or not tightens)


def read_private(path: str) -> bytes:
    """Return the content of a file that no other user can change or replace. It may be reached by links.

    Raises:
        ConfigurationError: Another user could write there; the message has the remedy.
        OSError: It cannot be read.
    """
    place = _followed(os.path.abspath(path))  # noqa: PTH100
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    # What is read is what is checked, in the folder that is, and no link or pipe that was put there meanwhile.
    with (
        _checked_folder(place) as (opened, _),
        open(os.open(os.path.basename(place), flags, dir_fd=opened), "rb") as file,  # noqa: PTH119
    ):
        _check_file(place, os.fstat(file.fileno()))
        return file.read()


OpenFile = tuple[int, int, int, int]
"""The number of an open file, its device and inode, and its owner."""


def open_files() -> set[OpenFile]:
    """Return the regular files that this process has open, as far as the system tells (Linux)."""
    files = set()
    with suppress(FileNotFoundError):
        for number in map(int, os.listdir(_OPEN)):  # noqa: PTH208
            with suppress(OSError):  # closed meanwhile, as the one of the list is
                found = os.fstat(number)
                if stat.S_ISREG(found.st_mode):
                    files.add((number, found.st_dev, found.st_ino, found.st_uid))
    return files


def was_exchanged(path: str, before: set[OpenFile]) -> bool:
    """Return True if, since these files were open, one of another user was opened, or not the one that has this path.

    SQLite opens files by their paths, so whoever can exchange folders above may do it between a check and the opening.
    """
    after, found = open_files(), os.lstat(path)
    is_foreign = any(owner not in _trusted() for *_, owner in after - before)
    return is_foreign or (bool(after) and (found.st_dev, found.st_ino) not in {(one[1], one[2]) for one in after})


def _followed(path: str) -> str:
    """Return where an absolute path leads, by links that no other user can change."""
    rest, place, links = path.split("/")[::-1], "/", 0
    while rest:
        step = os.path.normpath(f"{place}/{rest.pop()}")
        if not os.path.islink(step):  # noqa: PTH114
            place = step
            continue
        links += 1
        if links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        _check_link(step)
        target = os.readlink(step)  # noqa: PTH115
        rest += target.split("/")[::-1]
        place = "/" if target.startswith("/") else place
    return place


def _check_link(link: str) -> None:
    folder = os.path.dirname(link)  # noqa: PTH120
    found = os.stat(folder)
    # In a folder with the sticky bit, as Kubernetes mounts secrets, others can neither remove nor replace the link.
    is_open = _others_write(folder, found) and not found.st_mode & stat.S_ISVTX
    if is_open or not (_is_trusted(found) and _is_trusted(os.lstat(link))):
        raise ConfigurationError(
            f"another user of the machine can change the link {link!r}: give the path that it leads to, or let it and "
            "its folder belong to the server's user or the administrator, and no other user write there"
        )


@contextmanager
def _checked_folder(path: str) -> Iterator[tuple[int, bool]]:
    """Open and check the folder of a file, and yield its descriptor, and True if others may enter it."""
    folder = os.path.dirname(path)  # noqa: PTH120
    # O_PATH needs no permission to list the files.
    flags = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    opened = os.open(folder, flags)
    try:
        found = os.fstat(opened)
        own = f"give it a private folder, as in: mkdir -m 700 {os.path.join(folder, 'private')}"  # noqa: PTH118
        if not _is_trusted(found):
            raise ConfigurationError(
                f"the folder of {path!r} belongs to another user of the machine, who can replace it; "
                f"run this as that user, or {own}"
            )
        if _others_write(folder, found):
            raise ConfigurationError(
                f"other users of the machine can write to the folder of {path!r} and replace it; {own}"
            )
        _check_above(folder)
        yield opened, bool(found.st_mode & (stat.S_IXGRP | stat.S_IXOTH))
    finally:
        os.close(opened)


def _check_above(folder: str) -> None:
    """Check the folders above one, in which it can be renamed."""
    while (above := os.path.dirname(folder)) != folder:  # noqa: PTH120
        found = os.stat(above)
        if found.st_uid not in {*_trusted(), os.stat("/").st_uid}:
            raise ConfigurationError(
                f"the folder {above!r} belongs to another user of the machine, who can exchange {folder!r} in it; "
                f"let {above!r} belong to the server's user or the administrator, mount {folder!r} itself, or give a "
                "path elsewhere"
            )
        if not found.st_mode & stat.S_ISVTX and _others_write(above, found):
            _warn_of_exchange(folder, above)
        folder = above


@cache  # once for each folder
def _warn_of_exchange(folder: str, above: str) -> None:
    logger.warning(
        "other users of the machine can write to %s: they can exchange %s for an older copy of it; chmod +t %s, as the "
        "administrator, prevents that",
        *(above, folder, above),
    )


def _check_file(path: str, found: os.stat_result, *, by_mode: bool = True) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise ConfigurationError(f"{path!r} is a link or no file; here a file is needed, and this follows no link")
    if not _is_trusted(found) or (by_mode and _others_write(path, found)):
        raise ConfigurationError(
            f"another user of the machine can change {path!r}: it must belong to the server's user or the "
            "administrator, and no other user may write to it (chmod o-w,g-w). A secret that Docker Compose "
            "takes from a file keeps its owner of the host: chown it there to the server's uid or root, or pass the "
            "secret in an environment variable"
        )


def _is_trusted(found: os.stat_result) -> bool:
    return found.st_uid in _trusted()


def _trusted() -> set[int]:
    return {_ROOT, os.geteuid()}


def _others_write(path: str, found: os.stat_result) -> bool:
    """Return True if the mode lets anyone write but the owner."""
    if found.st_mode & stat.S_IWOTH:
        return True
    return bool(found.st_mode & stat.S_IWGRP) and not (_is_own_group(found) and not _has_acl(path))


def _is_own_group(found: os.stat_result) -> bool:
    """Return True if a group is the one of its user alone, which has the user's name, as `useradd` makes them."""
    try:
        user, group = pwd.getpwuid(found.st_uid), grp.getgrgid(found.st_gid)
    except KeyError:
        return False
    members = {*group.gr_mem, *(one.pw_name for one in pwd.getpwall() if one.pw_gid == group.gr_gid)}
    return user.pw_uid != _ROOT and user.pw_gid == group.gr_gid and members == {user.pw_name} == {group.gr_name}


def _has_acl(path: str) -> bool:
    """Return True if an ACL may let further users write: the mode shows what it allows at most as the group's."""
    listed = getattr(os, "listxattr", None)  # Linux
    return listed is not None and _ACL in listed(path)
