"""The page shows what every client got when the table was last written."""

from __future__ import annotations

import generated

from frameworks import trial
from frameworks.trial import NONE, PAGE
from mcp_sessions import Wire

PER_CALL = "**one per call**"


def test_an_authenticated_user_has_a_session_with_every_client() -> None:
    """By default some have none, or one for each call; `era="auto"` leads those of Node to one."""
    lines = generated.part(PAGE, trial.COMMAND).splitlines()
    rows = [line[2:-2].split(" | ") for line in lines if line.startswith("| ")][2:]
    assert trial.WITH_USERS in lines
    clients = {(by_default, auto): names.split("; ") for by_default, auto, names in rows}
    assert {name.split(" ")[0] for name in clients[PER_CALL, PER_CALL]} == {"AutoGen", "LangChain", "LlamaIndex"}
    assert {got: len(names) for got, names in clients.items() if NONE in got} == {
        (NONE, NONE): 1,
        (NONE, "by header"): 4,
    }
    settings = [setting for _, setting in trial.NODE.values() if setting != "default"]
    assert all(
        any(name.endswith(f" with {setting}") for row in rows for name in row[2].split("; ")) for setting in settings
    )
    assert "Tried on 20" in lines[-1]


def test_the_page_shows_what_leading_clients_to_the_legacy_era_costs() -> None:
    """As long as a client loses something, `era="auto"` is not the default."""
    lines = generated.part(PAGE, f"{trial.COMMAND} --features").splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")][2:]
    assert {row[0].split(" ")[0] for row in rows} == {f"`{package}`" for package, _ in trial.NODE.values()}
    assert any(row[3] != row[1] for row in rows)
    assert Wire().era == "both"
    assert "Tried on 20" in lines[-1]
