"""The examples that are programs print what they should, against servers on a network."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from clients import SECRET
from example_servers import EXAMPLES, fresh

import client_sdk
import client_two_conversations
import subagents
from integration.serving import serving


@pytest.fixture
def anyio_backend(monkeypatch: pytest.MonkeyPatch) -> str:
    """Uvicorn runs on asyncio alone; the servers read their keys when they are made."""
    monkeypatch.setenv("MCP_SESSIONS_KEYS", SECRET)
    return "asyncio"


async def printed(capsys: pytest.CaptureFixture[str], app: Any, *mains: Any) -> list[str]:
    """Return what programs print that run one after another against a server."""
    async with serving(app) as url:
        for main in mains:
            await main(url)
    return capsys.readouterr().out.splitlines()


async def test_a_session_outlives_its_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second start continues the count."""

    async def main(url: str) -> None:
        await client_sdk.main(str(tmp_path / "sessions.db"), url)

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
        *("trial: visit -> ['/bread', '/caviar']", "trial: put -> ['bread', 'caviar', 'milk', 'tea']"),
        *("orchestrator: visit -> ['/bread', '/salt']", "orchestrator: put -> ['bread', 'milk', 'salt', 'tea']"),
    ]


def test_the_demo_prints_every_step_and_no_credential() -> None:
    """Each conversation has its own cart, which processes that were started later continue."""
    command = [sys.executable, str(EXAMPLES / "demo.py")]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert not re.search(r"eyJ|\x1b", done.stdout)
    carts = re.findall(r"([AB]) +add\(.*?\) +-> \[(.*?)\], +process (\d+)", done.stdout)
    assert [f"{name} {cart}".replace("'", "") for name, cart, _ in carts] == [
        *("A milk", "B socks", "A milk, eggs", "B socks, a hat"),
        *("A milk, eggs, bread", "B socks, a hat, tickets", "A tea", "B socks, a hat, tickets, a map"),
    ]
    before, after = ({process for _, _, process in part} for part in (carts[:4], carts[4:]))
    assert not before & after
