"""`docs/client.md` says what is so: its code runs and prints what it shows, and its figures are the code's."""

import re
from pathlib import Path

import anyio
import pytest
from environments import needs
from pages import DOCS, blocks, run

from integration.servers import CELLS
from mcp_sessions import client
from mcp_sessions.client import _sessions as sessions
from mcp_sessions.client import _storage as storage

from .peers import served

PAGE = (DOCS / "client.md").read_text("utf-8")
COUNTED, CONVERSATIONS, KEPT, FORKED = (shown.splitlines() for shown in blocks(PAGE, "text"))
NEW_SDK, OLD_SDK = needs("mcp>=2"), needs("mcp<2")
CASES = [
    pytest.param(block, shown, marks=mark, id=str(number))
    for number, (block, shown, mark) in enumerate(
        zip(
            blocks(PAGE),
            (COUNTED, COUNTED, CONVERSATIONS, KEPT, FORKED),
            (NEW_SDK, OLD_SDK, NEW_SDK, NEW_SDK, NEW_SDK),
            strict=True,
        )
    )
]


@pytest.mark.parametrize(("block", "shown"), CASES)
async def test_what_the_page_shows_is_printed(
    block: str, shown: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each block as a program, with a real server; conversations may come in any order."""
    monkeypatch.chdir(tmp_path)
    async with served(CELLS[-1]) as server:
        await anyio.to_thread.run_sync(run, block.replace("http://127.0.0.1:8000/mcp", server.url))
    assert sorted(capsys.readouterr().out.splitlines()) == sorted(shown)


def test_the_page_names_what_there_is() -> None:
    errors = set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE))
    assert errors == {"Refused", "NotOffered", "NoAnswer", "SessionNotFound"}
    assert errors < set(client.__all__)
    assert f"({sessions.LEAVE_TIMEOUT:g} s)" in PAGE
    assert storage.LEEWAY.days == 1
