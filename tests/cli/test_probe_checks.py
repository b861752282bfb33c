"""Each rule finds its fault: on a server that is right nothing fails, and on one with a fault just that."""

from __future__ import annotations

import pytest
from faulty import OFFERS, Faulty, listening

from mcp_sessions._cli.probe import Report, probe
from mcp_sessions._cli.probe_client import Wire
from mcp_sessions._cli.probe_rules import RULES

NAMES = [rule.name for rule in RULES]
GONE = {"replay", "delete-again"}

# What a fault makes fail, in the modern era, where all rules apply.
FAULTS = {
    "advertised": {"advertised"},
    "create": {"create"},
    "full": {"create"},
    "unique": {"unique", "wrong-header", "survivor", "fork"},
    "hint": {"hint"},
    "create-within": {"create-within"},
    "use": {"use", "parallel"},
    "refused": {"use"},
    "mute": {"use", "parallel"},
    "state": {"state"},
    "without": {"without"},
    "parallel": {"parallel"},
    "malformed": {"malformed"},
    "unknown": {"unknown", "forged", "oversized", *GONE},
    "forged": {"forged", "alike"},
    "unnamed": {"unknown", "forged", *GONE},
    "alike": {"alike"},
    "oversized": {"oversized"},
    "worn-out": {"oversized"},
    "wrong-header": {"wrong-header"},
    "mirrored": {"mirrored"},
    "envelope": {"envelope"},
    "wrong-method": {"wrong-method"},
    "delete-nothing": {"delete-nothing"},
    "delete": {"delete"},
    "replay": GONE,
    "survivor": {"survivor", "fork"},
    "listed": {"listed"},
    "list-none": {"listed"},
    "fork": {"fork"},
    "fork-none": {"fork"},
}


def examined(*faults: str, offers: dict[str, object] | None = OFFERS) -> Report:
    """The report on a server with these faults."""
    with listening(Faulty(frozenset(faults), offers)) as url:
        return probe(Wire(url))


def failing(report: Report, era: str = "modern") -> set[str]:
    return {finding.rule for finding in report.findings if (finding.outcome, finding.era) == ("fails", era)}


def skipped(report: Report, era: str = "modern") -> dict[str, str]:
    return {one.rule: one.seen for one in report.findings if (one.outcome, one.era) == ("skipped", era)}


def test_a_right_server_keeps_every_rule() -> None:
    """In both eras; a rule that does not apply says why, and no session stays behind."""
    server = Faulty(frozenset({"stateful"}))
    with listening(server) as url:
        report = probe(Wire(url))
    assert report.holds
    assert [finding.rule for finding in report.findings] == NAMES * 2
    assert skipped(report) == {}
    assert set(skipped(report, "legacy")) == {"mirrored", "envelope", "wrong-method"}
    assert server.live == {}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault: str) -> None:
    report = examined(fault)
    assert failing(report) == FAULTS[fault]
    assert not report.holds
    assert all(finding.seen for finding in report.findings if finding.outcome != "holds")


def test_every_rule_has_a_fault_that_it_finds() -> None:
    """A rule that never fails proves nothing."""
    assert set().union(*FAULTS.values()) == set(NAMES)


def test_without_a_session_the_rules_that_need_one_are_skipped() -> None:
    """They would say nothing of the server."""
    assert set(skipped(examined("full")).values()) == {"no session was created", "no session was deleted"}


def test_what_is_not_offered_is_not_tried() -> None:
    """Extensions, a state, a hint, and lists for callers that are authenticated."""
    assert skipped(examined("hintless", offers={})) == {
        "hint": "the server gives none",
        "state": "the server keeps no state with the client",
        "listed": "not offered",
        "fork": "not offered",
    }
    assert skipped(examined("list-anonymous"))["listed"] == "for callers that are authenticated"


def test_a_server_without_sessions_fails_one_rule() -> None:
    """The one that asks for them; no other is tried."""
    report = examined(offers=None)
    assert failing(report) == failing(report, "legacy") == {"advertised"}
    assert set(skipped(report).values()) == {"no sessions are offered"}
    assert report.requests == 4
