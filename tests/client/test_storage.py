"""What is kept of the sessions between connections: every storage returns what it was given, by server."""

import logging
import os
import stat
from datetime import datetime, timedelta, timezone
from pathlib import Path

import anyio
import pytest

from mcp_sessions.client import ClientError, FileStorage, MemoryStorage, NoAnswer, SessionMetadata, SessionStorage

from .scripted import URL, Server, calling, echoing, losing, storing

FULL = SessionMetadata("one", "state", "2999-01-01T00:00:00Z")
TWO = SessionMetadata("two")


# --- a storage ---


@pytest.mark.parametrize("kept_in", ["memory", "a file"])
async def test_a_storage_returns_what_it_was_given(kept_in: str, tmp_path: Path) -> None:
    storage: SessionStorage = MemoryStorage() if kept_in == "memory" else FileStorage(tmp_path / "sessions.db")
    await storage.save(URL, "", FULL)
    await storage.save(URL, "thread", TWO)
    for session in (TWO, None):
        await storage.save(URL, "gone", session)
    await storage.save(f"{URL}?tenant=2", "", SessionMetadata("three"))
    assert await storage.load(URL) == {"": FULL, "thread": TWO}
    assert await storage.load(f"{URL}?tenant=2") == {"": SessionMetadata("three")}
    assert await storage.load("https://other.example/mcp") == {}


async def test_a_file_is_readable_by_its_owner_alone(tmp_path: Path) -> None:
    """Whatever the umask, also where others could read the file before; the folder, too."""
    path = tmp_path / "new" / "sessions.db"
    before = os.umask(0)
    try:
        await FileStorage(path).save(URL, "", FULL)
        path.chmod(0o666)
        await FileStorage(path).save(URL, "other", FULL)
    finally:
        os.umask(before)
    assert {stat.S_IMODE(found.stat().st_mode) for found in path.parent.iterdir()} == {0o600}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert repr(FileStorage(path)) == f"<FileStorage {str(path)!r}>"


async def test_a_file_that_does_not_hold_sessions_is_left_alone(tmp_path: Path) -> None:
    """Nothing is sent to the server, and nothing is lost that its owner may want back."""
    path, server = tmp_path / "sessions.db", Server()
    path.write_text("a letter to ann, which is not a database")
    with pytest.raises(ClientError, match=r"sessions\.db cannot be used to keep sessions: file is not a database"):
        await storing(server, FileStorage(path)).__aenter__()
    assert path.read_text().startswith("a letter")
    with pytest.raises(OSError, match="nowhere"):
        await storing(server, FileStorage("/proc/self/nowhere/sessions.db")).__aenter__()
    assert not server.received


async def test_programs_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    """Each change has a connection of its own, in a thread here."""
    path = tmp_path / "sessions.db"
    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(FileStorage(path).save, URL, str(number), TWO)
    assert len(await FileStorage(path).load(URL)) == 20


# --- sessions in a storage ---


async def test_named_sessions_are_kept_and_unnamed_ones_are_deleted() -> None:
    """The same object resumes what it holds, and not what another program has stored meanwhile."""
    server, storage = Server(), MemoryStorage()
    sessions = storing(server, storage)
    for _ in range(2):
        async with calling(sessions) as caller:
            for session in (sessions.open(""), sessions.open("thread"), sessions.new()):
                with sessions.use(session):
                    await caller.ask("tools/call")
            sessions.open("never used")
        assert await storage.load(URL) == {"": SessionMetadata("id-1"), "thread": SessionMetadata("id-2")}
        assert sessions.names == ["", "thread"]
        await storage.save(URL, "", SessionMetadata("theirs"))
        await storage.save(URL, "thread", SessionMetadata("theirs"))
    assert server.carried("tools/call") == ["id-1", "id-2", "id-3", "id-1", "id-2", "id-4"]
    assert server.carried("sessions/delete") == ["id-3", "id-4"]


async def test_sessions_are_resumed_from_the_storage() -> None:
    """Opened before the connection or later, the default one, and such as expired less than a day ago, if at all."""
    server, storage, now = Server(), MemoryStorage(), datetime.now(timezone.utc)
    for name, hours in {"": 1, "early": 1, "late": -12, "gone": -48}.items():
        hint = (now + timedelta(hours=hours)).isoformat()
        await storage.save(URL, name, SessionMetadata(f"kept{name}", "state", hint))
    for name, odd in {"local": (now - timedelta(hours=12)).replace(tzinfo=None).isoformat(), "odd": "soon"}.items():
        await storage.save(URL, name, SessionMetadata(name, None, odd))
    await storage.save(URL, "unknown", TWO)
    sessions = storing(server, storage)
    early = sessions.open("early")
    async with calling(sessions) as caller:
        assert sessions.names == ["", "early", "late", "local", "odd", "unknown"]
        for session in (sessions.open(""), early, sessions.open("late"), sessions.open("gone")):
            with sessions.use(session):
                await caller.ask("tools/call")
    assert server.carried("tools/call") == ["kept", "keptearly", "keptlate", "id-1"]


async def test_a_stored_session_that_ends_is_dropped() -> None:
    """The server has lost it, or the program deletes it, which a client that is pinned to a version can only later."""
    server, storage = Server({"tools/call": losing("lost")}), MemoryStorage()
    await storage.save(URL, "", SessionMetadata("lost"))
    await storage.save(URL, "thread", TWO)
    sessions = storing(server, storage)
    async with calling(sessions, greet=False) as caller:
        with pytest.raises(NoAnswer, match="version is unknown"):
            await sessions.delete(sessions.open("thread"))
        await caller.ask("tools/call")
        assert await storage.load(URL) == {"thread": TWO}
        await sessions.delete(sessions.open("thread"))
        assert await storage.load(URL) == {}
    assert server.carried("sessions/delete") == ["two"]


async def test_a_session_is_written_with_each_new_state_and_on_leaving() -> None:
    """A hint of expiry alone, which moves with every call, is written on leaving."""
    hint = "2999-01-01T00:00:00Z"
    server, storage = Server(), MemoryStorage()
    async with calling(storing(server, storage)) as caller:
        for news in ({"state": "one"}, {"expiresAt": hint}):
            server.rules["tools/call"] = echoing(**news)
            await caller.ask("tools/call")
            assert await storage.load(URL) == {"": SessionMetadata("id-1", "one")}
    assert await storage.load(URL) == {"": SessionMetadata("id-1", "one", hint)}


async def test_a_storage_that_cannot_be_written_later_is_reported_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Calls go on; what could not be written is held, and written when that works again."""
    path = tmp_path / "sessions.db"
    server, storage = Server({"tools/call": echoing(state="one")}), FileStorage(path)
    sessions = storing(server, storage)
    with caplog.at_level(logging.ERROR, "mcp_sessions"):
        async with calling(sessions) as caller:
            path.unlink()
            path.mkdir()
            await caller.ask("tools/call")
            path.rmdir()
            server.rules["tools/call"] = echoing(state="two")
            await caller.ask("tools/call")
            assert await storage.load(URL) == {"": SessionMetadata("id-1", "two")}
            path.unlink()
            path.mkdir()
            await sessions.delete(sessions.open(""))
            assert sessions.names == []
    assert len(caplog.records) == 3
    assert all("kept in memory only" in record.getMessage() for record in caplog.records)


async def test_a_server_is_its_url_without_password_and_fragment(tmp_path: Path) -> None:
    """No tenant or user of a host is sent the session of another, and no password is stored."""
    path, server = tmp_path / "sessions.db", Server()
    hosts = ("https://ann:secret@host/mcp#top", "https://ann:other@host/mcp", "https://bob:b@host/mcp")
    for url in (*hosts, "https://host/mcp", "https://host/mcp?tenant=1", "http://host/mcp"):
        async with calling(storing(server, FileStorage(path), url)) as caller:
            await caller.ask("tools/call")
    assert server.carried("tools/call") == ["id-1", "id-1", "id-2", "id-3", "id-4", "id-5"]
    assert b"secret" not in path.read_bytes()
