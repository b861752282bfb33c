"""`mcp-sessions probe URL`: what an MCP server speaks, which rules of sessions it keeps, and the clause of each.

It asks the one address that was typed, within bounds, calls no tool, reads no resource, and deletes its sessions. Of
what a server wrote, the report shows its version where that is a date, and its settings, as ASCII.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from .._errors import ConfigurationError
from . import terminal
from .probe_client import Exhausted, ProbeClient, Unanswered, Wire, connect_legacy, connect_modern
from .probe_rules import RULES, ProbeRun, Rule, Skipped

Outcome = Literal["holds", "fails", "skipped"]

_MARKS: Final = {"holds": "ok", "fails": "FAIL", "skipped": "-"}
_SETTINGS: Final[tuple[str, ...]] = ("required", "fork", "list")


def add_command(commands: Any) -> None:
    command: argparse.ArgumentParser = commands.add_parser("probe", help="test the sessions of any MCP server")
    command.add_argument("url", metavar="URL", help="the MCP endpoint, as in https://host.example/mcp")
    command.add_argument(
        "--token", type=terminal.secret_location, metavar="env:NAME|file:PATH", help="an access token for it"
    )
    command.add_argument("--json", action="store_true", help="print JSON")
    command.add_argument("--seconds", type=_positive, default=60, help="time limit in seconds (60)")
    command.add_argument("--requests", type=_positive, default=200, help="maximum number of requests (200)")
    command.set_defaults(command=_probe)


def _positive(text: str) -> int:
    if text.isascii() and text.isdigit() and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError("a whole number above 0")


def _probe(arguments: argparse.Namespace) -> int:
    token: str | None = None
    if arguments.token is not None:
        token = terminal.text_at(arguments.token, option="--token").strip()
        if not (token and token.isascii() and token.isprintable() and " " not in token):  # as a header may hold it
            raise ConfigurationError(f"--token {arguments.token} holds no access token")
    report = probe(Wire(arguments.url, bearer=token, requests=arguments.requests, seconds=arguments.seconds))
    if arguments.json:
        sys.stdout.write(json.dumps({"holds": report.holds, **asdict(report)}, indent=2) + "\n")
    else:
        sys.stdout.write(report.as_text())
    if report.stopped is not None:
        return terminal.UNKNOWN
    return terminal.OK if report.holds else terminal.REFUSED


def probe(wire: Wire) -> Report:
    """Examine a server in each era that it speaks, or raise `ConfigurationError` where it redirects its callers."""
    report = Report(wire.url)
    try:
        for connect in (connect_legacy, connect_modern):
            client = connect(wire)
            if client is not None:
                _examine(client, report)
    except (Exhausted, Unanswered) as error:
        report.stopped = str(error)
    if not report.eras and report.stopped is None:
        report.stopped = f"no MCP server answers there: {wire.last}"
    report.requests = wire.spent
    return report


def _examine(client: ProbeClient, report: Report) -> None:
    settings = client.settings or {}
    offers = {name: settings[name] for name in _SETTINGS if name in settings}
    report.eras.append(Era(client.era, client.shown_version, _dialects(client), offers))
    run = ProbeRun(client)
    try:
        for rule in RULES:
            report.findings.append(Finding(client.era, rule.name, rule.says, rule.clause, *_try(rule, run)))
    finally:
        run.delete_all()


def _try(rule: Rule, run: ProbeRun) -> tuple[Outcome, str]:
    offers_sessions = "sessions" in run.client.capabilities or run.client.settings is not None
    if rule.needs_sessions and not offers_sessions:
        return "skipped", "no sessions are offered"
    try:
        seen = rule.check(run)
    except Skipped as reason:
        return "skipped", str(reason)
    except Unanswered as reason:
        return "fails", str(reason)
    return ("holds", "") if seen is None else ("fails", seen)


def _dialects(client: ProbeClient) -> list[str]:
    offer = client.capabilities.get("sessions")
    dialects = []
    if offer is not None or client.settings is not None:
        dialects.append("draft")
    if isinstance(offer, dict) and "required" in offer:
        dialects.append("SEP-1364")
    if client.names_transport:
        dialects.append("transport header")
    elif client.transport is not None:
        dialects.append("transport sessions of its own")
    return dialects


@dataclass(frozen=True)
class Finding:
    era: str
    rule: str
    says: str
    clause: str
    outcome: Outcome
    seen: str = ""  # instead, or the reason to skip it

    def as_text(self) -> str:
        line = f"  {_MARKS[self.outcome]:<5} {self.rule:<15} {self.says:<50} {self.clause}"
        return f"{line}\n        {self.seen}" if self.seen else line


@dataclass(frozen=True)
class Era:
    """An era that a server speaks, and its offer of sessions there."""

    era: str
    version: str  # of the protocol, or `(unusual)` where the server names none that is a date
    dialects: list[str]  # in which sessions can be named
    offers: dict[str, Any]  # beyond the draft, and which requests need a session


@dataclass
class Report:
    url: str
    eras: list[Era] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    stopped: str | None = None  # why the probe ended early
    requests: int = 0

    @property
    def holds(self) -> bool:
        return self.stopped is None and bool(self.eras) and all(one.outcome != "fails" for one in self.findings)

    def as_text(self) -> str:
        lines = [self.url]
        for era in self.eras:
            offers = json.dumps(era.offers) if era.offers else ""
            dialects = ", ".join(era.dialects) or "no sessions"
            lines.append(f"  {era.era:<7} {era.version:<11} {dialects}  {offers}".rstrip())
        for era in self.eras:
            lines += ["", era.era, *(one.as_text() for one in self.findings if one.era == era.era)]
        counts = Counter(finding.outcome for finding in self.findings)
        summary = f"{counts['holds']} hold, {counts['fails']} fail, {counts['skipped']} skipped"
        stopped = "" if self.stopped is None else f"; {self.stopped}"
        return "\n".join([*lines, "", f"{summary}; {self.requests} requests{stopped}", ""])
