"""`docs/concepts.md` shows a session's life as the code has it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import generated
from lifecycle_page import COMMAND, LIVE, PAGE, WAYS, names, picture, ways

from mcp_sessions.stores.base import Standing


def test_the_picture_is_the_code_s(tmp_path: Path) -> None:
    """Rewrite the page with `python tests/support/lifecycle_page.py`."""
    copy = tmp_path / "concepts.md"
    shutil.copy(PAGE, copy)
    subprocess.run([sys.executable, "tests/support/lifecycle_page.py", str(copy)], check=True, cwd=PAGE.parents[1])
    assert generated.part(PAGE, COMMAND) == generated.part(copy, COMMAND) == picture()


def test_every_standing_is_in_the_picture() -> None:
    """Whoever adds one has to say what leads there."""
    assert {LIVE, *(standing.value for standing in WAYS)} == {standing.value for standing in Standing}


def test_whoever_is_not_live_is_refused_and_stays_so() -> None:
    """Nothing leads back, and a client hears why only where the session was its own."""
    assert {after for _, after, _ in ways()} == {LIVE, "ended", "expired", "lost"}
    assert {before for before, _, _ in ways()} == {"[*]", LIVE}
    assert names() == [
        'state "ended<br/>-32043, reason ended" as ended',
        'state "expired<br/>-32043, reason expired" as expired',
        'state "lost<br/>-32043" as lost',
    ]
