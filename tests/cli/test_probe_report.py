"""What a probe found, for people and for programs."""

from __future__ import annotations

import json

from mcp_sessions.cli.probe import Era, Finding, Report

HOLDS = Finding("legacy", "create", "a session is created", "draft: Creating Sessions", "holds")
FAILS = Finding("legacy", "replay", "a deleted session is not found", "draft: Schema", "fails", "HTTP 200, a result")
SKIPPED = Finding("modern", "fork", "a fork is a session", "extension: fork", "skipped", "not offered")
ERAS = [
    Era("legacy", "2025-11-25", ["draft", "transport header"], {"required": "never"}),
    Era("modern", "2026-07-28", [], {}),
]


def test_people_get_a_table() -> None:
    """What it speaks, each rule with its clause, what was seen, and the sum."""
    report = Report("https://host.example/mcp", ERAS, [HOLDS, FAILS, SKIPPED], requests=9)
    lines = [line.split() for line in report.as_text().splitlines()]
    assert lines[:3] == [
        ["https://host.example/mcp"],
        ["legacy", "2025-11-25", "draft,", "transport", "header", '{"required":', '"never"}'],
        ["modern", "2026-07-28", "no", "sessions"],
    ]
    assert lines[5] == ["ok", "create", "a", "session", "is", "created", "draft:", "Creating", "Sessions"]
    assert (lines[6][:2], lines[7]) == (["FAIL", "replay"], ["HTTP", "200,", "a", "result"])
    assert (lines[9], lines[10][:2], lines[11]) == (["modern"], ["-", "fork"], ["not", "offered"])
    assert lines[-1] == "1 hold, 1 fail, 1 skipped; 9 requests".split()


def test_programs_get_json() -> None:
    """All of it, and the verdict."""
    report = json.loads(Report("https://host.example/mcp", ERAS, [HOLDS]).as_json())
    assert report["holds"] is True
    assert report["findings"][0]["clause"] == "draft: Creating Sessions"
    assert report["eras"][0]["offers"] == {"required": "never"}


def test_all_is_well_where_all_was_tried_and_nothing_fails() -> None:
    """A skipped rule is none that fails; nobody to ask is no good answer."""
    assert Report("u", ERAS, [HOLDS, SKIPPED]).holds
    assert not Report("u", ERAS, [HOLDS, FAILS]).holds
    assert not Report("u", ERAS, [HOLDS], stopped="no answer").holds
    assert not Report("u").holds
    assert "; no answer" in Report("u", stopped="no answer").as_text()
