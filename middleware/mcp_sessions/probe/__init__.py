"""A doctor for the sessions of any MCP server: what it speaks, which rules hold, and the clause that asks for each.

It asks the one address that somebody typed, with a bounded number of requests within a bounded time, and deletes the
sessions that it made. It calls no tool and reads no resource.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from . import checks, speech
from .case import Case, Skipped
from .report import Era, Finding, Report
from .rules import RULES, Rule
from .speech import Speech
from .wire import Exhausted, Unanswered, Wire

ERAS: Final[tuple[Callable[[Wire], Speech | None], ...]] = (speech.legacy, speech.modern)
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
            applies = offered or rule.act is checks.advertised
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
