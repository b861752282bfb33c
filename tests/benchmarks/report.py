"""What a benchmark found: tables to read, and named figures that budgets and plots look up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from .timing import Times


@dataclass(frozen=True)
class Table:
    """Rows of text under one title.

    Args:
        title: What the table shows.
        columns: Their headings; the first one names the row.
        rows: The cells.
        note: How to read it, where the headings do not say it.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def text(self) -> str:
        """As a terminal shows it."""
        lines = [self.columns, *self.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        shown = ["  ".join((row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:]))) for row in lines]
        return "\n".join(filter(None, (self.title, *(f"  {line.rstrip()}" for line in shown), self.note)))

    def markdown(self) -> str:
        """As the documentation shows it."""
        ruler = ["---", *("---:" for _ in self.columns[1:])]
        lines = "\n".join(f"| {' | '.join(row)} |" for row in (self.columns, ruler, *self.rows))
        return "\n\n".join(filter(None, (f"### {self.title}", lines, self.note)))


@dataclass
class Report:
    """What one benchmark, or all of them, found."""

    tables: list[Table] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)

    @classmethod
    def all(cls, reports: Iterable[Report]) -> Report:
        """Several as one."""
        parts = list(reports)
        figures = chain.from_iterable(part.figures.items() for part in parts)
        return cls([table for part in parts for table in part.tables], dict(figures))

    @classmethod
    def of_race(
        cls, title: str, prefix: str, times: Mapping[str, Times], *, bases: Mapping[str, str], note: str = ""
    ) -> Report:
        """A race, each contestant beside the one that it is held against.

        Args:
            title: Of the table.
            prefix: The beginning of its figures' names; `/name/us`, `/adds` and `/throughput` follow.
            times: What each took.
            bases: For each, the name of the one that it is held against.
            note: Of the table.
        """
        rows: list[Sequence[str]] = []
        figures: dict[str, float] = {}
        for name, base_name in bases.items():
            own, base = times[name], times[base_name]
            adds, left = own.over(base), own.throughput(base)
            rows.append(
                (name, f"{own.median:.1f}", f"{own.least:.1f}", f"{own.spread:.0%}", f"{adds:+.1f}", f"{left:.2f}")
            )
            figures |= {
                f"{prefix}/{name}/us": own.median,
                f"{prefix}/{name}/adds": adds,
                f"{prefix}/{name}/throughput": left,
            }
        return cls([Table(title, ("", "us", "least", "spread", "adds", "throughput"), rows, note)], figures)
