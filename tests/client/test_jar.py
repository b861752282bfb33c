"""Every jar keeps what it is given, and gives it back for the same server and identity alone."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keyring
import keyring.backend
import keyring.errors
import pytest

from mcp_sessions import ConfigurationError
from mcp_sessions.client import JarUnreadable, SessionJar
from mcp_sessions.client import _jar as jar_module
from mcp_sessions.client._jar import JarKey
from mcp_sessions.client._session import Metadata

HERE = JarKey("https://host:443/mcp", "")
ANN = JarKey("https://host:443/mcp", "ann")
THERE = JarKey("https://host:443/other", "")
HELD = Metadata("one", "state", "2999-01-01T00:00:00Z")


class Ring(keyring.backend.KeyringBackend):
    """A keyring in this process."""

    priority = 1

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.held: dict[tuple[str, str], str] = {}
        self.locked = False

    def get_password(self, service: str, username: str) -> str | None:
        if self.locked:
            raise keyring.errors.KeyringLocked("locked")
        return self.held.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self.held[service, username] = password

    def delete_password(self, service: str, username: str) -> None:
        del self.held[service, username]


@pytest.fixture
def ring() -> Iterator[Ring]:
    before, ring = keyring.get_keyring(), Ring()
    keyring.set_keyring(ring)
    yield ring
    keyring.set_keyring(before)


@pytest.fixture(params=["memory", "file", "keyring"])
def jar(request: pytest.FixtureRequest, tmp_path: Path) -> SessionJar:
    if request.param == "keyring":
        request.getfixturevalue("ring")
        return SessionJar.in_keyring("program")
    return SessionJar(tmp_path / "new" / "jar.json" if request.param == "file" else None)


async def test_a_jar_gives_back_what_it_was_given(jar: SessionJar) -> None:
    await jar.put(HERE, "", HELD)
    await jar.put(HERE, "thread", Metadata("two"))
    await jar.put(ANN, "", Metadata("three"))
    assert await jar.load(HERE) == {"": HELD, "thread": Metadata("two")}
    assert await jar.load(ANN) == {"": Metadata("three")}
    assert await jar.load(THERE) == {}


async def test_a_jar_changes_what_it_holds(jar: SessionJar) -> None:
    """Updated while it is the same session, and dropped; one that another process has replaced is neither."""
    other = {"other": Metadata("two")}
    await jar.put(HERE, "other", other["other"])
    await jar.put(HERE, "", HELD)
    await jar.update(HERE, "", Metadata("one", "new"))
    for name, session_id in (("", "another"), ("other", "one"), ("unknown", "one")):
        await jar.update(HERE, name, Metadata(session_id, "newer"))
        await jar.drop(HERE, name, session_id)
    assert await jar.load(HERE) == {"": Metadata("one", "new"), **other}
    await jar.drop(HERE, "", "one")
    assert await jar.load(HERE) == other
    await jar.put(HERE, "other", HELD)
    assert await jar.load(HERE) == {"other": HELD}


async def test_a_jar_drops_what_is_past_its_time(jar: SessionJar) -> None:
    """When it is loaded, with some leeway, and never what has no time that can be read."""
    now = datetime.now(timezone.utc)
    times = {"live": timedelta(hours=1), "late": -jar_module.LEEWAY / 2, "gone": -2 * jar_module.LEEWAY}
    for name, passed in times.items():
        await jar.put(HERE, name, Metadata(name, None, (now + passed).isoformat()))
    await jar.put(HERE, "unknown", Metadata("one"))
    assert set(await jar.load(HERE)) == {"live", "late", "unknown"}


def test_a_jar_shows_nothing_of_what_it_holds(jar: SessionJar) -> None:
    assert repr(HELD) == "<Metadata, expires at 2999-01-01T00:00:00Z>"
    assert repr(jar) in {f"<SessionJar, Jar{kind}>" for kind in ("Memory", "File", "Keyring")}


def names(folder: Path) -> list[str]:
    return sorted(found.name for found in folder.iterdir())


async def test_a_file_is_its_owners_alone(tmp_path: Path) -> None:
    """Whatever the umask, also where a file that others could read stood there before; the folder, too."""
    path = tmp_path / "new" / "jar.json"
    before = os.umask(0)
    try:
        await SessionJar(path).put(HERE, "", HELD)
        path.chmod(0o666)
        await SessionJar(path).put(HERE, "other", HELD)
    finally:
        os.umask(before)
    modes = {stat.S_IMODE(found.stat().st_mode) for found in path.parent.iterdir()}
    assert modes == {0o600}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert names(path.parent) == ["jar.json", "jar.json.lock"]


async def test_a_file_is_replaced_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where writing fails, the old one stands with nothing left beside it; no change writes nothing."""
    path = tmp_path / "jar.json"
    jar = SessionJar(path)
    await jar.put(HERE, "", HELD)
    before = path.stat()
    await jar.update(HERE, "", HELD)
    after = path.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)

    def fail(_: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        await jar.put(HERE, "other", HELD)
    monkeypatch.undo()
    assert await jar.load(HERE) == {"": HELD}
    assert names(tmp_path) == ["jar.json", "jar.json.lock"]


async def test_a_file_behind_a_link_is_replaced_there(tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to(tmp_path / "jar.json")
    await SessionJar(tmp_path / "link.json").put(HERE, "", HELD)
    assert (tmp_path / "link.json").is_symlink()
    assert await SessionJar(tmp_path / "jar.json").load(HERE) == {"": HELD}


NOT_JARS = [
    b"",
    b"{",
    b"\xff",
    b"[]",
    b"{}",
    b'{"version":1}',
    b'{"version":1,"servers":{"s":{"i":{"n":{"sessionId":7}}}}}',
]


@pytest.mark.parametrize("content", NOT_JARS)
async def test_a_file_that_is_not_a_jar_is_kept_and_reported(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "jar.json"
    for number in (1, 2):
        path.write_bytes(content)
        with pytest.raises(JarUnreadable, match=rf"is not a jar of sessions: moved to .*jar\.json\.corrupt-{number}"):
            await SessionJar(path).load(HERE)
        assert (tmp_path / f"jar.json.corrupt-{number}").read_bytes() == content
    assert await SessionJar(path).load(HERE) == {}


async def test_a_file_of_a_newer_version_is_left_where_it_is(tmp_path: Path) -> None:
    """It is good for the program that wrote it."""
    path = tmp_path / "jar.json"
    path.write_text('{"version": 2, "shelves": []}')
    with pytest.raises(JarUnreadable, match="newer version"):
        await SessionJar(path).load(HERE)
    assert path.exists()


PROGRAM = """
import asyncio, sys
from mcp_sessions.client import SessionJar
from mcp_sessions.client._session import Metadata
from mcp_sessions.client import _jar as jar_module
from mcp_sessions.client._jar import JarKey

async def main(path, who):
    jar = SessionJar(path)
    for number in range(40):
        await jar.put(JarKey("https://host:443/mcp", who), str(number), Metadata(f"{who}-{number}"))

asyncio.run(main(*sys.argv[1:]))
"""


def test_programs_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "jar.json"
    programs = [subprocess.Popen([sys.executable, "-c", PROGRAM, str(path), who]) for who in ("ann", "bob", "cat")]
    assert [program.wait() for program in programs] == [0, 0, 0]
    held = json.loads(path.read_text())["servers"]["https://host:443/mcp"]
    assert {who: len(names) for who, names in held.items()} == {"ann": 40, "bob": 40, "cat": 40}


async def test_where_there_is_no_flock_the_systems_own_lock_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Windows, whose call is written down here."""
    calls: list[Any] = []
    windows = SimpleNamespace(LK_LOCK=1, locking=lambda *call: calls.append(call[1:]))
    monkeypatch.setitem(sys.modules, "msvcrt", windows)
    monkeypatch.setattr(jar_module, "WINDOWS", True)
    await SessionJar(tmp_path / "jar.json").put(HERE, "", HELD)
    assert calls == [(1, 1)]


async def test_a_keyring_shows_the_server_and_the_identity(ring: Ring) -> None:
    await SessionJar.in_keyring("program").put(ANN, "", HELD)
    await SessionJar.in_keyring("program").put(HERE, "", HELD)
    assert set(ring.held) == {("program", "https://host:443/mcp ann"), ("program", "https://host:443/mcp")}


async def test_an_entry_without_sessions_is_kept_and_reported(ring: Ring) -> None:
    """Under another name; the next start begins anew."""
    jar = SessionJar.in_keyring("program")
    ring.held["program", HERE.server] = "{"
    with pytest.raises(JarUnreadable, match="was moved to 'https://host:443/mcp \\(corrupt\\)'"):
        await jar.load(HERE)
    assert ring.held == {("program", f"{HERE.server} (corrupt)"): "{"}
    assert await jar.load(HERE) == {}


async def test_a_keyring_that_cannot_be_used_is_reported(ring: Ring) -> None:
    ring.locked = True
    with pytest.raises(JarUnreadable, match="KeyringLocked"):
        await SessionJar.in_keyring("program").load(HERE)


def test_without_the_library_there_is_no_jar_in_the_keyring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(ConfigurationError, match="pip install keyring"):
        SessionJar.in_keyring("program")
