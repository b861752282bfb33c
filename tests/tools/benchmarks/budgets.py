"""The budgets, and what became of them.

A budget names a figure and a limit: instructions beyond a pass-through, which hardly change from run to run, or a ratio
of two times of one run, since a time alone belongs to a machine. A budget whose figure is not there says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from . import peers
from .report import Table

Figures = Mapping[str, float]


@dataclass(frozen=True)
class Budget:
    """One limit."""

    name: str  # begins with its number
    figure: str  # the name of what is measured
    limit: float
    unit: str
    how: str  # it is measured
    at_least: bool = False

    def verdict(self, figures: Figures) -> str:
        """Return `met`, `short by` so much, or `not measured`."""
        found = figures.get(self.figure)
        if found is None:
            return "not measured"
        if found >= self.limit if self.at_least else found <= self.limit:
            return "met"
        return f"short by {_number(abs(found - self.limit))} {self.unit}".rstrip()

    def row(self, figures: Figures) -> tuple[str, str, str, str, str]:
        """Return its row of the table."""
        limit = f"{'at least' if self.at_least else 'at most'} {_number(self.limit)} {self.unit}".rstrip()
        found = f"{_number(figures[self.figure])} {self.unit}".rstrip() if self.figure in figures else ""
        return (self.name, limit, found, self.verdict(figures), self.how)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _counted(name: str, kind: str, thousands: float) -> Budget:
    """Return a budget in thousands of instructions."""
    how = "instructions beyond a pass-through"
    return Budget(name, f"instructions/ours, {kind}/more", 1000 * thousands, "", how)


def _cheaper(peer: str, limit: float) -> Budget:
    how = "time over a pass-through, trivial application, in process"
    return Budget(f"8. times cheaper than {peer}", f"trivial/{peer}/times", limit, "times", how, at_least=True)


def _left_by_counts(kind: str, part: float) -> Budget:
    figure, how = f"instructions/ours, {kind}/throughput", "instructions without ours, in parts of those with it"
    return Budget("8. the SDK's server, by counts", figure, part, "", how, at_least=True)


def _left(era: str, section: str) -> Budget:
    how = "of the bare server's throughput, in process"
    return Budget(f"8. the SDK's server, {era}", f"{section}/ours, session/throughput", 0.94, "", how, at_least=True)


_HEIGHT: Final = "tracemalloc peak at the largest body"
_BODIES: Final = "exponent between the two largest bodies"
BUDGETS: Final = (
    _counted("1. no session", "no session named", 45),
    _counted("2. a session, token seen before", "session", 115),
    _counted("3. the same, state sent and unchanged", "session, state unchanged", 120),
    _counted("4. state changed", "session, state changed", 170),
    _counted("5. `idle_timeout`", "session, idle_timeout", 170),
    _counted("6. one recorded span", "session, traced", 310),
    _counted("7. a forged token refused", "forged session refused", 280),
    _cheaper(peers.READ, 1),
    _cheaper(peers.WRITE, 2),
    _cheaper(peers.SPANS, 10),
    _left_by_counts("session, SDK", 0.93),
    _left("JSON", "sdk-json"),
    _left("SSE", "sdk-sse"),
    Budget("9. cost at the most sessions", "sessions/flatness", 1.1, "times", "against one, token cache off"),
    Budget("9. cost at the most revocations", "revocations/flatness", 1.1, "times", "against none, memory store"),
    Budget("9. a live session", "memory/live session", 1, "B", "tracemalloc, token cache off"),
    Budget("9. a revocation", "memory/revocation", 200, "B", "tracemalloc, memory store"),
    Budget("9. growth of a full token cache", "memory/cache growth", 1.05, "times", "after a second flood of tokens"),
    Budget("10. growth of time with a request", "requests/exponent", 1.15, "", _BODIES),
    Budget("10. growth of time with a response", "responses/exponent", 1.15, "", _BODIES),
    Budget("10. copies of a request body", "requests/copies", 2.05, "times", _HEIGHT),
    Budget("10. extra copies of a JSON response", "responses/extra copies", 1.05, "times", _HEIGHT),
    Budget("10. events of a stream that are held", "stream/events held", 1, "events", "against one of half as many"),
    Budget("10. added delay of the first byte", "stream/first byte", 1000, "us", "over a pass-through"),
    Budget("10. events ahead of a slow reader", "stream/ahead of the reader", 1, "events", "a reader that takes none"),
    Budget("11. import over its dependencies", "import/ms", 60, "ms", "fresh interpreters, processor time"),
    Budget("11. optional libraries imported", "import/optional", 0, "", "sys.modules"),
)


def table(figures: Figures, *, whole: bool = True) -> Table:
    """Return every budget, or those of which something was measured."""
    rows = [budget.row(figures) for budget in BUDGETS if whole or budget.figure in figures]
    return Table("Budgets", ("", "budget", "found", "verdict", "measured"), rows)
