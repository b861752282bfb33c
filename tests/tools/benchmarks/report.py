"""What a benchmark found: tables to read, and named figures that budgets and the summary look up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Table:
    """Rows of text under one title; the first column names the row."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def text(self) -> str:
        """Return the table as a terminal shows it."""
        lines = [self.columns, *self.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        shown = ["  ".join((row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:]))) for row in lines]
        return "\n".join(filter(None, (self.title, *(f"  {line.rstrip()}" for line in shown), self.note)))

    def markdown(self) -> str:
        """Return the table as the documentation shows it."""
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
        """Return several reports as one."""
        whole = cls()
        for report in reports:
            whole.tables += report.tables
            whole.figures |= report.figures
        return whole
