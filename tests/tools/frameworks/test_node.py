"""The page shows what every Node client got when the table was last written."""

from __future__ import annotations

import generated

from frameworks import node
from frameworks.node import PAGE


def test_the_page_shows_a_session_for_every_client_in_one_setting_or_another() -> None:
    """None by default where no cookies are kept, one in the legacy era, and the user's with sessions of a principal."""
    lines = generated.part(PAGE, node.COMMAND).splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| `")]
    assert [setting for _, setting, *_ in rows] == [setting for _, setting in node.CLIENTS.values()]
    assert [got[0] for _, _, *got in rows] == ["**none**"] * 4 + ["a session"] * 2
    assert {tuple(got[1:]) for _, _, *got in rows} == {("a session", "the user's session")}
    assert "Tried on 20" in lines[-1]
