"""The example `transaction`: begin, write, read, commit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from example_servers import connected

from session_client import HeldSession, ToolFailed
from stage import together


@pytest.fixture(autouse=True)
def database(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Use a new database in each test, and close it."""
    monkeypatch.delenv("SETTINGS_DB", raising=False)
    yield
    import transaction

    transaction.database.close()


async def test_committed_values_are_seen_by_all() -> None:
    """Before the commit, only the session that wrote a value reads it."""
    async with connected("transaction") as client:
        a, b = await HeldSession.create(client), await HeldSession.create(client)
        assert await a.call("begin") == "open"
        assert await a.call("write", name="color", value="red") == {"color": "red"}
        assert await a.call("write", name="size", value="9") == {"color": "red", "size": "9"}
        assert [await a.call("read", name="color"), await b.call("read", name="color")] == ["red", None]
        assert await a.call("commit") == 2
        assert [await a.call("read", name="size"), await b.call("read", name="size")] == ["9", "9"]


async def test_the_end_of_a_session_rolls_back() -> None:
    """Uncommitted values of a deleted session are gone."""
    async with connected("transaction") as client:
        a, b = await HeldSession.create(client), await HeldSession.create(client)
        await a.call("begin")
        await a.call("write", name="color", value="red")
        await a.delete()
        assert await b.call("read", name="color") is None


async def test_one_of_two_parallel_commits_makes_the_changes() -> None:
    """The other commit finds no open transaction."""
    async with connected("transaction") as client:
        session = await HeldSession.create(client)
        await session.call("begin")
        await session.call("write", name="color", value="red")
        outcomes = await together([session.call("commit") for _ in range(2)])
        made, refused = sorted(outcomes)
        assert made == "1"
        assert refused.endswith("no transaction is open; call begin first")


@pytest.mark.parametrize(("tool", "arguments"), [("write", {"name": "color", "value": "red"}), ("commit", {})])
async def test_a_write_without_begin_is_refused(tool: str, arguments: dict[str, str]) -> None:
    """The error names the tool to call first."""
    async with connected("transaction") as client:
        session = await HeldSession.create(client)
        with pytest.raises(ToolFailed, match="call begin first"):
            await session.call(tool, **arguments)
