"""The budgets, and what became of them.

A budget names a figure and a limit. Limits of time were set on one machine, so they are read in times of the machine
factor that was found in the same rounds as the figure. A budget whose figure is not there says so.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from .report import Table

Figures = Mapping[str, float]


@dataclass(frozen=True)
class Budget:
    """One promise.

    Args:
        number: Its number among the budgets.
        name: What is promised.
        figure: What is measured.
        limit: What it may be.
        unit: Of the limit.
        how: How it is measured.
        machine: The figure of the machine factor, where the limit is a time.
        at_least: Whether the limit is a lower one.
    """

    number: int
    name: str
    figure: str
    limit: float
    unit: str
    how: str
    machine: str = ""
    at_least: bool = False

    def here(self, figures: Figures) -> float:
        """The limit as it is read on this machine."""
        return self.limit * figures[self.machine] if self.machine else self.limit

    def verdict(self, figures: Figures) -> str:
        """`met`, `short by` so much, or `not measured`."""
        found = figures.get(self.figure)
        if found is None:
            return "not measured"
        limit = self.here(figures)
        keeps = operator.ge if self.at_least else operator.le
        if keeps(found, limit):
            return "met"
        return f"short by {abs(found - limit):.3g} {self.unit}".rstrip()


_TRIVIAL: Final = "over a pass-through, trivial application, in process"
_SDK: Final = "of the bare server's throughput, in process"
_OURS: Final = "trivial/ours, session/adds"

BUDGETS: Final = (
    Budget(1, "a session, token seen before", _OURS, 15, "us", _TRIVIAL, "trivial/machine"),
    Budget(1, "the same, SDK server, JSON", "sdk-json/ours, session/throughput", 0.93, "", _SDK, at_least=True),
    Budget(1, "the same, SDK server, SSE", "sdk-sse/ours, session/throughput", 0.93, "", _SDK, at_least=True),
    Budget(1, "times cheaper than SessionMiddleware", "trivial/cheaper/cookies", 2, "times", _TRIVIAL, at_least=True),
    Budget(1, "times cheaper than OpenTelemetry ASGI", "trivial/cheaper/spans", 8, "times", _TRIVIAL, at_least=True),
    Budget(2, "a session, one recorded span", "traced/ours, session/adds", 55, "us", _TRIVIAL, "traced/machine"),
    Budget(2, "the same, SDK server, JSON", "traced-sdk/ours, session/throughput", 0.85, "", _SDK, at_least=True),
    Budget(3, "no session, none needed", "trivial/ours, no session named/adds", 6, "us", _TRIVIAL, "trivial/machine"),
    Budget(
        3,
        "responses read without a session",
        "responses/read without a session",
        0,
        "",
        "whether the same object leaves",
    ),
    Budget(4, "the pure core", "core/core/us", 5, "us", "parse, verify from cache, decide, splice", "core/machine"),
    Budget(4, "the pure core, in limits", "core/limits", 4, "times", "against HMAC, search and blind splice"),
    Budget(5, "cost at the most sessions", "sessions/flatness", 1.1, "times", "against one session, token cache off"),
    Budget(5, "cost at the most revocations", "revocations/flatness", 1.1, "times", "against none, memory store"),
    Budget(5, "bytes for a live session", "memory/live session", 1, "B", "tracemalloc, token cache off"),
    Budget(5, "bytes for a revocation", "memory/revocation", 200, "B", "tracemalloc, memory store"),
    Budget(
        5,
        "growth of a full token cache",
        "memory/cache growth",
        1.05,
        "times",
        "after a second flood of distinct tokens",
    ),
    Budget(5, "a forged token, in verified ones", "floods/forged to valid", 1, "times", "each for the first time"),
    Budget(
        5, "an oversized token, in verified ones", "floods/long to valid", 1, "times", "1,000 bytes instead of a token"
    ),
    Budget(
        6, "growth of time with a request", "requests/exponent", 1.15, "", "exponent between the two largest bodies"
    ),
    Budget(
        6, "growth of time with a response", "responses/exponent", 1.15, "", "exponent between the two largest bodies"
    ),
    Budget(6, "copies of a request body", "requests/copies", 2.05, "times", "tracemalloc peak at the largest body"),
    Budget(
        6,
        "extra copies of a JSON response",
        "responses/extra copies",
        1.05,
        "times",
        "tracemalloc peak at the largest body",
    ),
    Budget(
        6,
        "events of a stream that are held",
        "stream/events held",
        1,
        "events",
        "tracemalloc peak, of a stream against one of half as many",
    ),
    Budget(
        6, "added delay of the first byte", "stream/first byte", 1000, "us", "over a pass-through", "stream/machine"
    ),
    Budget(6, "events ahead of a slow reader", "stream/ahead of the reader", 1, "events", "a reader that takes none"),
    Budget(
        7, "import over its dependencies", "import/ms", 60, "ms", "fresh interpreters, processor time", "import/machine"
    ),
    Budget(7, "optional libraries imported", "import/optional", 0, "", "sys.modules"),
)


def table(figures: Figures, *, whole: bool = True) -> Table:
    """Every budget, or those of which something was measured."""
    rows = [
        (
            f"{budget.number}. {budget.name}",
            f"{'at least' if budget.at_least else 'at most'} {budget.limit:g} {budget.unit}".rstrip(),
            *_found(budget, figures),
            budget.verdict(figures),
            budget.how,
        )
        for budget in BUDGETS
        if whole or budget.figure in figures
    ]
    note = (
        "here: the limit in times of the machine factor, which is how much longer known work takes here; "
        "ratio: what was found, in times of that."
    )
    return Table("Budgets", ("", "budget", "here", "found", "ratio", "verdict", "measured"), rows, note)


def _found(budget: Budget, figures: Figures) -> tuple[str, str, str]:
    """The limit here, what was found, and the latter in times of the former."""
    if budget.figure not in figures:
        return ("", "", "")
    limit, found = budget.here(figures), figures[budget.figure]
    ratio = f"{found / limit:.2f}" if limit else ""
    return (_number(limit, budget), _number(found, budget), ratio)


def _number(value: float, budget: Budget) -> str:
    return f"{value:.2f} {budget.unit}".rstrip()
