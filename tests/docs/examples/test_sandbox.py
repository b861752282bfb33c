"""The example `sandbox`: a folder for each session, removed when the session ends."""

from __future__ import annotations

from pathlib import Path

import pytest
from example_servers import connected

from session_client import HeldSession, ToolFailed


@pytest.fixture(autouse=True)
def sandboxes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the folders in a temporary one."""
    monkeypatch.setenv("SANDBOXES", str(tmp_path))
    return tmp_path


def kept(sandboxes: Path) -> list[str]:
    """Return the notes of every folder."""
    return [file.read_text("utf-8") for file in sandboxes.glob("*/notes.txt")]


async def test_files_belong_to_a_session_and_are_removed_with_it(sandboxes: Path) -> None:
    """Each session sees its own files, and a deleted session's folder is removed alone."""
    async with connected("sandbox") as client:
        a, b = await HeldSession.create(client), await HeldSession.create(client)
        assert await a.call("write", name="notes.txt", text="mine") == ["notes.txt"]
        assert await a.call("write", name="more.txt", text="mine, too") == ["more.txt", "notes.txt"]
        assert await b.call("write", name="notes.txt", text="other") == ["notes.txt"]
        assert [await a.call("read", name="notes.txt"), await b.call("read", name="notes.txt")] == ["mine", "other"]
        assert sorted(kept(sandboxes)) == ["mine", "other"]
        await a.delete()
        assert kept(sandboxes) == ["other"]


async def test_a_session_without_files_can_be_deleted(sandboxes: Path) -> None:
    """A session that wrote nothing is deleted, though it has no folder."""
    async with connected("sandbox") as client:
        session = await HeldSession.create(client)
        with pytest.raises(ToolFailed, match=r"there is no notes\.txt in this session"):
            await session.call("read", name="notes.txt")
        await session.delete()
        assert kept(sandboxes) == []


@pytest.mark.parametrize("name", ["../out", "/etc/passwd", "..", "a/b", ""])
async def test_a_name_cannot_leave_the_folder(name: str) -> None:
    """A path in place of a plain file name is refused."""
    async with connected("sandbox") as client:
        session = await HeldSession.create(client)
        with pytest.raises(ToolFailed, match="is no plain file name"):
            await session.call("write", name=name, text="out")
