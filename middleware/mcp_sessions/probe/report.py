"""What a probe found, as a table for people and as JSON for programs.

Nothing that a server wrote is shown but its version, where that is a date, and its settings, as ASCII.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

Outcome = Literal["holds", "fails", "skipped"]
_MARKS: Final = {"holds": "ok", "fails": "FAIL", "skipped": "-"}


@dataclass(frozen=True)
class Finding:
    """What became of one rule in one era.

    Args:
        era: The era.
        rule: The rule's name.
        says: What has to hold.
        clause: Where that is asked for.
        outcome: Whether it does.
        seen: What was seen instead, or why it was skipped.
    """

    era: str
    rule: str
    says: str
    clause: str
    outcome: Outcome
    seen: str = ""


@dataclass(frozen=True)
class Era:
    """What a server says of itself in one era.

    Args:
        era: Its name.
        version: The protocol's version, or `(unusual)` where the server names none that is a date.
        dialects: How sessions can be spoken of.
        offers: What is offered beyond the draft, and which requests need a session.
    """

    era: str
    version: str
    dialects: list[str]
    offers: dict[str, Any]


@dataclass
class Report:
    """What was found out about a server.

    Args:
        url: The server.
        eras: What it speaks.
        findings: What became of each rule.
        stopped: Why the probe ended before its time, or None.
        requests: How many were sent.
    """

    url: str
    eras: list[Era] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    stopped: str | None = None
    requests: int = 0

    @property
    def holds(self) -> bool:
        """Whether all was tried and nothing fails."""
        return self.stopped is None and bool(self.eras) and all(one.outcome != "fails" for one in self.findings)

    def as_json(self) -> str:
        """The report for programs."""
        return json.dumps({"holds": self.holds, **asdict(self)}, indent=2)

    def as_text(self) -> str:
        """The report for people."""
        lines = [self.url, *(_spoken(era) for era in self.eras)]
        for era in self.eras:
            lines += ["", era.era, *(_line(one) for one in self.findings if one.era == era.era)]
        return "\n".join([*lines, "", self._summary(), ""])

    def _summary(self) -> str:
        counted = Counter(finding.outcome for finding in self.findings)
        ended = "" if self.stopped is None else f"; {self.stopped}"
        rules = f"{counted['holds']} hold, {counted['fails']} fail, {counted['skipped']} skipped"
        return f"{rules}; {self.requests} requests{ended}"


def _spoken(era: Era) -> str:
    dialects = ", ".join(era.dialects) or "no sessions"
    offers = json.dumps(era.offers) if era.offers else ""
    return f"  {era.era:<7} {era.version:<11} {dialects}  {offers}".rstrip()


def _line(finding: Finding) -> str:
    line = f"  {_MARKS[finding.outcome]:<5} {finding.rule:<15} {finding.says:<50} {finding.clause}"
    return f"{line}\n        {finding.seen}" if finding.seen else line
