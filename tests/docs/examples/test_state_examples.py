"""The examples whose tools keep something for a session, as a client of the official SDK sees them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from example_servers import (
    HeldSession,
    ToolFailed,
    call_without_session,
    connected,
    http_of,
    running,
    together,
)


def kept(sandboxes: Path) -> list[str]:
    """Return the notes of every folder."""
    return [file.read_text("utf-8") for file in sandboxes.glob("*/notes.txt")]


class TestCounter:
    """The example `counter`: each call returns one more than the last one of its session."""

    async def test_each_session_counts_for_itself(self) -> None:
        """A session counts on, whatever another session does."""
        async with connected("counter") as client:
            a, b = await HeldSession.create(client), await HeldSession.create(client)
            assert [await session.call("count") for session in (a, a, b, a)] == [1, 2, 1, 3]

    async def test_an_unchanged_client_counts_on(self) -> None:
        """A client that names no session is in one by its cookies."""
        async with connected("counter") as client:
            answers = [(await client.call_tool("count")).structured_content for _ in range(2)]
            assert answers == [{"result": 1}, {"result": 2}]

    async def test_the_client_holds_the_number(self) -> None:
        """State is last-write-wins: a client that sends an older state again counts from there."""
        async with connected("counter") as client:
            session = await HeldSession.create(client)
            await session.call("count")
            meta = session.meta
            answers = [(await client.call_tool("count", meta=meta)).structured_content for _ in range(2)]
            assert answers == [{"result": 2}, {"result": 2}]


class TestNotebook:
    """The example `notebook`: notes that the client holds, a notebook for each session."""

    async def test_a_notebook_holds_its_own_notes_in_order(self) -> None:
        """Notes come back oldest first, without those of another session."""
        async with connected("notebook") as client:
            a, b = await HeldSession.create(client), await HeldSession.create(client)
            assert await a.call("append", note="one") == ["one"]
            assert await b.call("append", note="other") == ["other"]
            assert await a.call("append", note="two") == ["one", "two"]
            assert await a.call("read") == ["one", "two"]
            assert await b.call("read") == ["other"]

    async def test_a_note_beyond_the_limit_is_refused(self) -> None:
        """A note that does not fit is refused with the limit, and the notes before it are kept."""
        async with connected("notebook") as client:
            session = await HeldSession.create(client)
            await session.call("append", note="short")
            with pytest.raises(ToolFailed, match="the limit is 4096"):
                await session.call("append", note="long" * 2000)
            assert await session.call("read") == ["short"]

    async def test_a_model_does_not_see_the_session(self) -> None:
        """The schema of a tool has its own arguments alone."""
        async with connected("notebook") as client:
            asked = {tool.name: sorted(tool.input_schema["properties"]) for tool in (await client.list_tools()).tools}
            assert asked == {"append": ["note"], "read": []}


class TestSandbox:
    """The example `sandbox`: a folder for each session, removed when the session ends."""

    @pytest.fixture(autouse=True)
    def sandboxes(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """Keep the folders in a temporary one."""
        monkeypatch.setenv("SANDBOXES", str(tmp_path))
        return tmp_path

    async def test_files_belong_to_a_session_and_are_removed_with_it(self, sandboxes: Path) -> None:
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

    async def test_a_session_without_files_can_be_deleted(self, sandboxes: Path) -> None:
        """A session that wrote nothing is deleted, though it has no folder."""
        async with connected("sandbox") as client:
            session = await HeldSession.create(client)
            with pytest.raises(ToolFailed, match=r"there is no notes\.txt in this session"):
                await session.call("read", name="notes.txt")
            await session.delete()
            assert kept(sandboxes) == []

    @pytest.mark.parametrize("name", ["../out", "/etc/passwd", "..", "a/b", ""])
    async def test_a_name_cannot_leave_the_folder(self, name: str) -> None:
        """A path in place of a plain file name is refused."""
        async with connected("sandbox") as client:
            session = await HeldSession.create(client)
            with pytest.raises(ToolFailed, match="is not a plain file name"):
                await session.call("write", name=name, text="out")


class TestTransaction:
    """The example `transaction`: begin, write, read, commit."""

    @pytest.fixture(autouse=True)
    def database(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """Use a new database in each test, and close it."""
        monkeypatch.delenv("SETTINGS_DB", raising=False)
        yield
        import transaction

        transaction.database.close()

    async def test_committed_values_are_seen_by_all(self) -> None:
        """Before the commit, only the session that wrote a value reads it."""
        async with connected("transaction") as client:
            a, b = await HeldSession.create(client), await HeldSession.create(client)
            assert await a.call("begin") == "open"
            assert await a.call("write", name="color", value="red") == {"color": "red"}
            assert await a.call("write", name="size", value="9") == {"color": "red", "size": "9"}
            assert [await a.call("read", name="color"), await b.call("read", name="color")] == ["red", None]
            assert await a.call("commit") == 2
            assert [await a.call("read", name="size"), await b.call("read", name="size")] == ["9", "9"]

    async def test_the_end_of_a_session_rolls_back(self) -> None:
        """Uncommitted values of a deleted session are gone."""
        async with connected("transaction") as client:
            a, b = await HeldSession.create(client), await HeldSession.create(client)
            await a.call("begin")
            await a.call("write", name="color", value="red")
            await a.delete()
            assert await b.call("read", name="color") is None

    async def test_one_of_two_parallel_commits_makes_the_changes(self) -> None:
        """The other commit finds no open transaction."""
        async with connected("transaction") as client:
            session = await HeldSession.create(client)
            await session.call("begin")
            await session.call("write", name="color", value="red")
            outcomes = await together([session.call("commit") for _ in range(2)])
            made, refused = sorted(map(str, outcomes))
            assert made == "1"
            assert refused.endswith("no transaction is open; call begin first")

    @pytest.mark.parametrize(("tool", "arguments"), [("write", {"name": "color", "value": "red"}), ("commit", {})])
    async def test_a_write_without_begin_is_refused(self, tool: str, arguments: dict[str, str]) -> None:
        async with connected("transaction") as client:
            session = await HeldSession.create(client)
            with pytest.raises(ToolFailed, match="call begin first"):
                await session.call(tool, **arguments)


@pytest.mark.parametrize(
    ("name", "tool"),
    [
        ("counter", "count"),
        ("notebook", "append"),
        ("notebook", "read"),
    ],
)
async def test_a_tool_that_needs_a_session(name: str, tool: str) -> None:
    """A call without one gets the protocol's error: before the tool sees it, or from the tool."""
    async with running(name) as app, http_of(app) as http:
        answer = await call_without_session(http, tool)
    assert "Session required" in answer
    assert "-31044" in answer
