"""The client examples, against the servers that they name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from clients import SECRET
from example_servers import fresh

import client_sdk
import client_two_conversations
import subagents
from integration.serving import serving


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The servers read their keys when they are made."""
    monkeypatch.setenv("MCP_SESSIONS_KEYS", SECRET)


@pytest.fixture
def anyio_backend() -> str:
    """Uvicorn runs on asyncio alone."""
    return "asyncio"


async def printed(capsys: pytest.CaptureFixture[str], app: Any, *mains: Any) -> list[str]:
    """Return what programs print that run one after another against a server."""
    async with serving(app) as url:
        for main in mains:
            await main(url)
    return capsys.readouterr().out.splitlines()


async def test_a_session_outlives_its_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second start continues the count."""
    file = str(tmp_path / "sessions.db")

    async def main(url: str) -> None:
        await client_sdk.main(file, url)

    assert await printed(capsys, fresh("counter"), main, main) == [
        *("begins a session", "count() -> 1", "count() -> 2", "count() -> 3"),
        *("continues a session", "count() -> 4", "count() -> 5", "count() -> 6"),
    ]


async def test_each_conversation_has_its_own_notes(capsys: pytest.CaptureFixture[str]) -> None:
    """Parallel conversations over one connection keep separate notes, and one is continued by its name."""
    lines = await printed(capsys, fresh("notebook"), client_two_conversations.main)
    assert sorted(lines[:4]) == [
        *("packing: ['socks', 'a hat']", "packing: ['socks']"),
        *("shopping: ['milk', 'eggs']", "shopping: ['milk']"),
    ]
    assert lines[4:] == ["shopping: ['milk', 'eggs', 'butter']"]


async def test_sub_agents_share_a_cart_and_have_a_browser_each(capsys: pytest.CaptureFixture[str]) -> None:
    """What is tried out on a copy shows nowhere else."""
    lines = await printed(capsys, subagents.server(), subagents.main)
    assert [line for line in lines if "visit" in line and "agent:" in line] == [
        *("milk agent: visit -> ['/milk']", "tea agent: visit -> ['/tea']"),
    ]
    assert lines[-4:] == [
        "trial: visit -> ['/bread', '/caviar']",
        "trial: put -> ['bread', 'caviar', 'milk', 'tea']",
        "orchestrator: visit -> ['/bread', '/salt']",
        "orchestrator: put -> ['bread', 'milk', 'salt', 'tea']",
    ]
