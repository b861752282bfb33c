"""Key files, SQLite stores and the client's storage: one rule says whose files they may be, and who may write there."""

import logging
import os
import pwd
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from clients import START, Clock
from every_store import memory_folder
from signers import NEW, OLD

from mcp_sessions import ConfigurationError, KeyRing, _files
from mcp_sessions._errors import StoreUnavailable
from mcp_sessions._tokens.keyfile import key_source
from mcp_sessions.client import ClientError, FileStorage, SessionMetadata
from mcp_sessions.stores import SQLiteStore

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")

OURS, EVE, SHARED = 4711, 4712, 4713  # two users, and a group of both
URL: Final = "https://host.example/mcp"
MINE: Final = SessionMetadata("mine")


# --- what is kept in a folder, by kind -----------------------------------------------------------


def keys(path: Path) -> None:
    if not path.exists():
        path.write_text(f"{OLD}\n")
        path.chmod(0o600)
    key_source(f"file:{path}")


def store(path: Path) -> None:
    async def use() -> None:
        opened = SQLiteStore(path, clock=Clock(START))
        try:
            await opened.open()
        finally:
            await opened.close()

    anyio.run(use)


def storage(path: Path) -> None:
    if not path.exists():
        anyio.run(FileStorage(path).save, URL, "", MINE)
    assert anyio.run(FileStorage(path).load, URL) == {"": MINE}


Use = Callable[[Path], None]
KINDS: Final[dict[str, Use]] = {"keys": keys, "store": store, "storage": storage}
DATABASES: Final = {"store": store, "storage": storage}


@pytest.fixture
def path() -> Iterator[Path]:
    """A path in a private folder, in a folder that only root may write to."""
    with memory_folder() as outer:
        Path(outer).chmod(0o755)
        (folder := Path(outer) / "folder").mkdir(mode=0o700)
        yield folder / "held"


@contextmanager
def as_user(user: int, group: int, *more: int) -> Iterator[None]:
    groups = os.getgroups()
    os.setgroups([group, *more])
    os.setegid(group)
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


def chown(path: Path, user: int, group: int = -1, mode: int | None = None) -> None:
    os.chown(path, user, group, follow_symlinks=False)
    if mode is not None:
        path.chmod(mode)


def move_behind_link(path: Path, owner: int) -> None:
    path.rename(path.with_name("real"))
    path.symlink_to(path.with_name("real"))
    os.chown(path, owner, -1, follow_symlinks=False)


# --- what others can change ----------------------------------------------------------------------


def change_modes(folder: int, file: int, group: int = 0) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        for one, mode in ((path.parent, folder), (path, file)):
            chown(one, 0, group, mode)

    return change


def give_to_eve(path: Path) -> None:
    for one in (path.parent, path):
        chown(one, EVE)


EXPOSED: Final[dict[str, tuple[Callable[[Path], Any], str]]] = {
    "a folder that all may write to": (lambda path: path.parent.chmod(0o777), "mkdir -m 700"),
    "such a folder with the sticky bit": (lambda path: path.parent.chmod(0o1777), "mkdir -m 700"),
    "a folder that its group may write to": (lambda path: path.parent.chmod(0o770), "mkdir -m 700"),
    "a folder that another group may write to": (lambda path: chown(path.parent, 0, SHARED, 0o2775), "mkdir -m 700"),
    "a folder of another user": (lambda path: chown(path.parent, EVE), "run this as that user"),
    "a file and folder of another user": (give_to_eve, "run this as that user"),
    "a file of another user": (lambda path: chown(path, EVE), "chmod o-w"),
    "a link of another user": (lambda path: move_behind_link(path, EVE), "link"),
    "a file that all may write to": (change_modes(0o711, 0o602), "chmod o-w"),
    "a file that a group may write to": (change_modes(0o711, 0o660, SHARED), "chmod o-w"),
}


@pytest.mark.parametrize("use", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize(("expose", "remedy"), EXPOSED.values(), ids=EXPOSED)
def test_what_others_can_change_is_refused(use: Use, expose: Callable[[Path], Any], remedy: str, path: Path) -> None:
    """And it is left as it is."""
    use(path)
    expose(path)
    before = sorted(path.parent.iterdir())
    with pytest.raises((ConfigurationError, ClientError), match=remedy) as refused:
        use(path)
    assert str(path.parent) in str(refused.value)
    assert sorted(path.parent.iterdir()) == before


@pytest.mark.parametrize("use", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("owner", [0, EVE])
def test_a_link_on_the_way_is_followed_if_nobody_else_can_change_it(use: Use, owner: int, path: Path) -> None:
    """Its own owner counts, and who may write to the folder that holds it."""
    (outer := path.parents[1] / "outer").mkdir()
    (link := outer / "link").symlink_to(path.parent)
    use(link / "held")
    os.chown(link, owner, -1, follow_symlinks=False)
    if owner == 0:
        use(link / "held")
        outer.chmod(0o777)
    with pytest.raises((ConfigurationError, ClientError), match="can change the link"):
        use(link / "held")


@pytest.mark.parametrize("use", DATABASES.values(), ids=DATABASES)
@pytest.mark.parametrize("end", ["-wal", "-shm", "-journal"])
def test_what_another_user_put_beside_a_database_is_refused(use: Use, end: str, path: Path) -> None:
    use(path)
    beside = Path(f"{path}{end}")
    beside.touch(mode=0o600)
    chown(beside, EVE)
    with pytest.raises((ConfigurationError, ClientError), match=end):
        use(path)
    beside.unlink()
    beside.symlink_to(path)
    with pytest.raises((ConfigurationError, ClientError), match="follows no link"):
        use(path)


def hot_journal(path: Path, statement: str) -> bytes:
    """Return a journal that takes a database back to what it is now, and change the database."""
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        for text in ("PRAGMA journal_mode = DELETE", "PRAGMA synchronous = OFF", "BEGIN IMMEDIATE", statement):
            database.execute(text).fetchone()
        journal = Path(f"{path}-journal").read_bytes()
        database.execute("COMMIT")
    return journal


@pytest.mark.parametrize(
    ("use", "statement"),
    [
        (store, "UPDATE store SET epoch = epoch + 1"),
        (storage, "UPDATE sessions SET id = 'changed'"),
    ],
    ids=DATABASES,
)
def test_a_planted_journal_changes_nothing(use: Use, statement: str, path: Path) -> None:
    """A member of a group that may write to the folder cannot bring back an earlier state."""
    use(path)
    journal = hot_journal(path, statement)
    changed = path.read_bytes()
    for one in (path.parent, path):
        chown(one, OURS, SHARED)
    path.parent.chmod(0o770)
    with as_user(EVE, EVE, SHARED):
        (planted := Path(f"{path}-journal")).write_bytes(journal)
        planted.chmod(0o666)
    with as_user(OURS, OURS, SHARED), pytest.raises((ConfigurationError, ClientError)):
        use(path)
    assert path.read_bytes() == changed


def test_keys_are_not_read_again_from_where_others_can_write(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The earlier keys stay in force, and the log says why."""
    path.write_text(OLD)
    source = key_source(f"file:{path}")
    ring = source(START)
    path.parent.chmod(0o777)
    with as_user(EVE, EVE):
        path.unlink()
        path.write_text(NEW)
    with caplog.at_level(logging.ERROR, "mcp_sessions"):
        assert source(START + 1) is ring
        path.parent.chmod(0o700)
        assert source(START + 2) is ring
    assert "keeping the previous keys" in caplog.text
    assert "mkdir -m 700" in caplog.text
    assert NEW not in caplog.text
    chown(path, 0)
    assert repr(source(START + 3)) == repr(KeyRing([NEW]))


@pytest.mark.parametrize("use", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("mode", [0o755, 0o1777])
def test_a_folder_that_another_user_can_rename_is_refused(use: Use, mode: int, path: Path) -> None:
    """The owner of a folder above it may do so, whatever its mode."""
    use(path)
    chown(path.parents[1], EVE, -1, mode)
    with pytest.raises((ConfigurationError, ClientError), match="belongs to another user") as refused:
        use(path)
    assert str(path.parents[1]) in str(refused.value)


EXCHANGES: list[Callable[[], None]] = []


@cache
def listen() -> None:
    """Call what a test wants to happen before and after a database is opened, from now on."""

    def hook(event: str, _: tuple[Any, ...]) -> None:
        if EXCHANGES and event.startswith("sqlite3.connect"):
            EXCHANGES[0]()

    sys.addaudithook(hook)


@pytest.mark.parametrize("use", DATABASES.values(), ids=DATABASES)
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are known on Linux alone")
@pytest.mark.parametrize("owner", [0, EVE])
def test_a_file_exchanged_while_it_is_opened_is_refused(use: Use, owner: int, path: Path) -> None:
    """Folders are exchanged after the check, and again when the other file is open. Further readers hide nothing."""
    use(path)
    (other := path.parents[1] / "other").mkdir()
    shutil.copy(path, other)
    for one in (other, other / path.name):
        chown(one, owner)

    def exchange() -> None:
        path.parent.rename(path.parents[1] / "aside")
        other.rename(path.parent)
        (path.parents[1] / "aside").rename(other)

    listen()
    with closing(sqlite3.connect(path if owner else ":memory:")):
        EXCHANGES.append(exchange)
        try:
            with pytest.raises((StoreUnavailable, ClientError)):
                use(path)
        finally:
            EXCHANGES.clear()
    assert path.owner() == pwd.getpwuid(0).pw_name


@pytest.mark.parametrize("use", KINDS.values(), ids=KINDS)
def test_a_volume_without_the_sticky_bit_is_logged(use: Use, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.parents[1].chmod(0o777)
    use(path)
    assert f"chmod +t {path.parents[1]}" in caplog.text
    caplog.clear()
    use(path)
    assert "chmod +t" not in caplog.text


# --- what no other user can change -----------------------------------------------------------------


@pytest.mark.parametrize("use", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o2775])
def test_a_private_folder_in_a_shared_volume_is_accepted(use: Use, mode: int, path: Path) -> None:
    """As the error says, for a container's volume: what others put in its place would not belong to the server."""
    chown(path.parents[1], 0, SHARED, mode)
    chown(path.parent, OURS)
    with as_user(OURS, OURS):
        use(path)
    path.parent.rename(path.parents[1] / "away")
    path.parent.mkdir(mode=0o755)
    chown(path.parent, EVE)
    with as_user(OURS, OURS), pytest.raises((ConfigurationError, ClientError, OSError)):
        use(path)


@pytest.mark.parametrize("mode", [0o444, 0o440])
def test_secrets_as_kubernetes_mounts_them_are_read_again(mode: int, path: Path) -> None:
    """They belong to root, behind two links, in a folder with the sticky bit; another group may read them."""
    mount = path.parents[1] / "mount"
    mount.mkdir()
    chown(mount, 0, SHARED, 0o3777)

    def publish(version: str, secret: str) -> None:
        (folder := mount / f"..{version}").mkdir()
        chown(folder, 0, SHARED, 0o2755)
        (folder / "keys").write_text(secret)
        chown(folder / "keys", 0, SHARED, mode)
        (mount / "..data_tmp").symlink_to(folder.name)
        (mount / "..data_tmp").rename(mount / "..data")

    publish("2026_01", OLD)
    (mount / "keys").symlink_to("..data/keys")
    with as_user(OURS, OURS, SHARED):
        source = key_source(f"file:{mount / 'keys'}")
        assert repr(source(START)) == repr(KeyRing([OLD]))
    publish("2026_02", NEW)
    with as_user(OURS, OURS, SHARED):
        assert repr(source(START + 1)) == repr(KeyRing([NEW]))


ALONE: Final = next(
    (
        user
        for user in pwd.getpwall()
        if user.pw_uid and _files._is_own_group(os.stat_result((0, 0, 0, 0, user.pw_uid, user.pw_gid, 0, 0, 0, 0)))
    ),
    None,
)


@pytest.mark.skipif(ALONE is None, reason="no user here has a group alone")
@pytest.mark.parametrize("use", KINDS.values(), ids=KINDS)
def test_the_group_of_one_user_alone_may_write(use: Use, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with the umask 002 of many distributions; but not if an ACL may let others in by the same bit."""
    assert ALONE is not None
    chown(path.parent, ALONE.pw_uid, ALONE.pw_gid, 0o775)
    with as_user(ALONE.pw_uid, ALONE.pw_gid):
        use(path)
        monkeypatch.setattr(os, "listxattr", lambda path: ["system.posix_acl_access"], raising=False)
        with pytest.raises((ConfigurationError, ClientError), match="mkdir -m 700"):
            use(path)


def test_the_client_creates_private_folders(path: Path) -> None:
    before = os.umask(0)
    try:
        storage(path.parent / "new" / "deeper" / "held")
    finally:
        os.umask(before)
    assert {one.stat().st_mode & 0o777 for one in path.parent.rglob("*") if one.is_dir()} == {0o700}


def test_links_in_a_circle_are_an_error(path: Path) -> None:
    path.symlink_to(path)
    with pytest.raises(ConfigurationError, match="Too many levels of symbolic links"):
        key_source(f"file:{path}")
