"""The command that examines a server: `mcp-sessions probe URL`.

It asks the address that was typed and no other. An access token is named and not given, as everywhere on this command
line. Exit codes: 0 everything holds, 1 something does not, 2 the command cannot be carried out as given, 3 the server
did not answer, or not to the end.

A doctor for the sessions of any MCP server: what it speaks, which rules hold, and the clause that asks for each.

It asks the one address that somebody typed, with a bounded number of requests within a bounded time, and deletes the
sessions that it made. It calls no tool and reads no resource.

What a probe found, as a table for people and as JSON for programs.

Nothing that a server wrote is shown but its version, where that is a date, and its settings, as ASCII.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from ..errors import ConfigurationError
from . import probe_client, probe_rules, terminal
from .probe_client import Exhausted, Speech, Unanswered, Wire
from .probe_rules import RULES, Case, Rule, Skipped


def add_command(commands: Any) -> None:
    """Add `probe` to a parser's commands."""
    command: argparse.ArgumentParser = commands.add_parser("probe", help="examine the sessions of any MCP server")
    command.add_argument("url", metavar="URL", help="of the MCP endpoint, as in https://host.example/mcp")
    command.add_argument("--token", type=terminal.named, metavar="env:NAME|file:PATH", help="an access token for it")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.add_argument("--seconds", type=_positive, default=60, help="that all of it may take (60)")
    command.add_argument("--requests", type=_positive, default=200, help="that may be sent (200)")
    command.set_defaults(command=_probe)


def _positive(text: str) -> int:
    if text.isascii() and text.isdigit() and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError("a whole number above 0")


def _probe(given: argparse.Namespace) -> int:
    from .probe_client import Wire

    wire = Wire(given.url, bearer=_token(given.token), requests=given.requests, seconds=given.seconds)
    report = probe(wire)
    sys.stdout.write(f"{report.as_json()}\n" if given.json else report.as_text())
    if report.stopped is not None:
        return terminal.UNKNOWN
    return terminal.OK if report.holds else terminal.REFUSED


def _token(source: str | None) -> str | None:
    """The access token.

    Raises:
        ConfigurationError: There is none where it was said to be, or it cannot stand in a header.
    """
    if source is None:
        return None
    kind, _, place = source.partition(":")
    token = os.environ.get(place, "").strip() if kind == "env" else terminal.text(place, option="--token file:")
    if token and token.isascii() and token.isprintable() and " " not in token:
        return token
    raise ConfigurationError(f"--token {source} holds no access token")


ERAS: Final[tuple[Callable[[Wire], Speech | None], ...]] = (probe_client.legacy, probe_client.modern)
_KNOWN: Final = ("required", "fork", "descendants", "list", "endAll")

__all__ = ["Report", "Wire", "probe"]


def probe(wire: Wire) -> Report:
    """Examine a server.

    Args:
        wire: The way to it.

    Raises:
        ConfigurationError: It sends its callers elsewhere.
    """
    report = Report(wire.url)
    try:
        for begin in ERAS:
            spoken = begin(wire)
            if spoken is not None:
                _examine(Case(spoken), report)
    except (Exhausted, Unanswered) as error:
        report.stopped = str(error)
    if not report.eras and report.stopped is None:
        report.stopped = f"no MCP server answers there: {wire.last}"
    report.requests = wire.spent
    return report


def _examine(case: Case, report: Report) -> None:
    spoken = case.speech
    report.eras.append(Era(spoken.era, spoken.shown, _dialects(spoken), _offers(spoken)))
    offered = "sessions" in spoken.capabilities or spoken.settings is not None
    try:
        for rule in RULES:
            applies = offered or rule.act is probe_rules.advertised
            report.findings.append(_try(rule, case) if applies else _skipped(rule, case))
    finally:
        case.let_go()


def _skipped(rule: Rule, case: Case) -> Finding:
    return Finding(case.speech.era, rule.name, rule.says, rule.clause, "skipped", "no sessions are offered")


def _try(rule: Rule, case: Case) -> Finding:
    told = (case.speech.era, rule.name, rule.says, rule.clause)
    try:
        seen = rule.act(case)
    except Skipped as why:
        return Finding(*told, "skipped", str(why))
    except Unanswered as why:
        return Finding(*told, "fails", str(why))
    return Finding(*told, "holds") if seen is None else Finding(*told, "fails", seen)


def _dialects(spoken: Speech) -> list[str]:
    """How a server says that sessions can be spoken of."""
    said = spoken.capabilities.get("sessions")
    found = []
    if said is not None or spoken.settings is not None:
        found.append("draft")
    if isinstance(said, dict) and "required" in said:
        found.append("SEP-1364")
    if spoken.names_transport:
        found.append("transport header")
    elif spoken.transport is not None:
        found.append("transport sessions of its own")
    return found


def _offers(spoken: Speech) -> dict[str, Any]:
    return {name: spoken.settings[name] for name in _KNOWN if name in spoken.settings} if spoken.settings else {}


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
