"""Private files: nobody but this process's user and the administrator can change them, or put others in their place.

One rule for key files, SQLite stores and the client's storage. The file, what SQLite keeps beside it, and their folder
belong to one of the two, and nobody else may write to them. Links on the way are followed only if nobody else can
change them. Folders further up are not looked at: who can write there can move the folder away, but not replace it by
one of the same owner. ACLs count as far as the mode shows them, as POSIX ACLs do; those of NFS 4 do not.
Source: OpenSSH's StrictModes, with Debian's exception for the groups that each user has alone.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from ._errors import ConfigurationError

with suppress(ImportError):  # on Windows
    import grp
    import pwd

_ROOT: Final = 0
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
        tightens: Whether the caller makes the modes stricter, so that they do not count in a folder that nobody else
            may enter.

    Raises:
        ConfigurationError: Somebody else could write there; the message has the remedy.
        OSError: It cannot be looked at.
    """
    folder, name = os.path.split(path)
    place = os.path.join(_followed(folder), name)  # noqa: PTH118
    is_entered = _check_folder(place)
    for end in ("", *beside):
        try:
            found = os.lstat(place + end)
        except FileNotFoundError:
            continue
        _check_file(place + end, found, by_mode=is_entered or not tightens)


def read_private(path: str) -> bytes:
    """Return the content of a file that nobody else can change or replace. It may be reached by links.

    Raises:
        ConfigurationError: Somebody else could write there; the message has the remedy.
        OSError: It cannot be read.
    """
    place = _followed(os.path.abspath(path))  # noqa: PTH100
    _check_folder(place)
    # What is read is what is checked, and neither a link nor a pipe that was put there meanwhile.
    with open(os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        _check_file(place, os.fstat(file.fileno()))
        return file.read()


def _followed(path: str) -> str:
    """Return where an absolute path leads, by links that nobody else can change."""
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
            "its folder belong to the server's user or the administrator, with nobody else writing there"
        )


def _check_folder(path: str) -> bool:
    """Check the folder of a file, and return True if others may enter it."""
    folder = os.path.dirname(path)  # noqa: PTH120
    found = os.stat(folder)
    own = f"give it a folder of its own, as in: mkdir -m 700 {os.path.join(folder, 'private')}"  # noqa: PTH118
    if not _is_trusted(found):
        raise ConfigurationError(
            f"the folder of {path!r} belongs to another user of the machine, who can replace it; "
            f"run this as that user, or {own}"
        )
    if _others_write(folder, found):
        raise ConfigurationError(
            f"other users of the machine can write to the folder of {path!r} and replace it; {own}"
        )
    return bool(found.st_mode & (stat.S_IXGRP | stat.S_IXOTH))


def _check_file(path: str, found: os.stat_result, *, by_mode: bool = True) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise ConfigurationError(f"{path!r} is a link or no file; here a file is needed, and this follows no link")
    if not _is_trusted(found) or (by_mode and _others_write(path, found)):
        raise ConfigurationError(
            f"another user of the machine can change {path!r}: it must belong to the server's user or the "
            "administrator, and nobody else may write to it (chmod o-w,g-w)"
        )


def _is_trusted(found: os.stat_result) -> bool:
    return found.st_uid in {_ROOT, os.geteuid()}


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
