"""`docs/concepts.md` shows the life of a session as the code defines it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import generated
from lifecycle_page import COMMAND, LIVE, PAGE, WAYS, names, picture, ways

from mcp_sessions.stores.base import Standing


def test_the_picture_is_generated_from_the_code(tmp_path: Path) -> None:
    """The picture is what `python tests/support/lifecycle_page.py` writes."""
    copy = tmp_path / "concepts.md"
    shutil.copy(PAGE, copy)
    subprocess.run([sys.executable, "tests/support/lifecycle_page.py", str(copy)], check=True, cwd=PAGE.parents[1])
    assert generated.part(PAGE, COMMAND) == generated.part(copy, COMMAND) == picture()


def test_every_standing_is_in_the_picture() -> None:
    """The picture has every standing that a store can report."""
    assert {LIVE, *(standing.value for standing in WAYS)} == {standing.value for standing in Standing}


def test_a_session_that_is_over_stays_refused() -> None:
    """Nothing leads back to a live session, and only its owner learns the reason."""
    assert {after for _, after, _ in ways()} == {LIVE, "ended", "expired", "lost"}
    assert {before for before, _, _ in ways()} == {"[*]", LIVE}
    assert names() == [
        'state "ended<br/>-32043, reason ended" as ended',
        'state "expired<br/>-32043, reason expired" as expired',
        'state "lost<br/>-32043" as lost',
    ]
