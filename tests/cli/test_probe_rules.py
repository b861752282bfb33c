"""The table of rules is what the page about the probe shows."""

from __future__ import annotations

from pathlib import Path

from mcp_sessions import cli
from mcp_sessions.cli.probe_client import PATIENCE
from mcp_sessions.cli.probe_rules import RULES

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "probe.md").read_text("utf-8")


def test_the_page_has_every_rule_with_its_clause() -> None:
    """In the order in which they are tried."""
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    assert rows == [f"| `{rule.name}` | {rule.says} | {rule.clause} |" for rule in RULES]


def test_every_rule_has_a_name_of_its_own() -> None:
    """Which programs go by."""
    assert len({rule.name for rule in RULES}) == len(RULES)


def test_the_page_says_where_it_ends() -> None:
    """Figures and options."""
    given = cli._parser().parse_args(["probe", "http://host.example/mcp"])
    assert f"{given.requests} requests and {given.seconds} seconds" in PAGE
    assert f"{PATIENCE:g} seconds for one answer" in PAGE
