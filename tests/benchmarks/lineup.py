"""Who runs against whom, and the proof that each does what its name says.

A contestant that answers with an error is fast and worth nothing: before a race each is asked once, and its answer
must hold the text that it cannot hold otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from . import anchors, apps
from .report import Report
from .timing import race
from .traffic import SESSION_KEY, Visits

NONE: Final = "none"
PASS: Final = "pass-through"
PLAIN: Final = "pass-through, no session named"
SERVED: Final = apps.TEXT.encode()
ECHOED: Final = SESSION_KEY.encode()
HOW_TO_READ: Final = (
    "us: processor time per request, the middle round and the least; spread: of the middle half of the rounds; adds "
    "and throughput: against a pass-through that serves the same request."
)


@dataclass(frozen=True)
class Row:
    """One contestant.

    Args:
        name: What the table calls it.
        visits: Its requests.
        proof: What stands in each of its answers.
        base: The row that it is held against.
    """

    name: str
    visits: Visits
    proof: bytes = SERVED
    base: str = PASS


async def run(
    title: str, prefix: str, rows: Sequence[Row], *, rounds: int, requests: int, note: str = "", machine: bool = False
) -> Report:
    """Prove each row, race them, and report.

    Args:
        title: Of the table.
        prefix: The beginning of the names of the figures.
        rows: The contestants.
        rounds: How many times each has its turn.
        requests: How many requests each serves in a turn.
        note: Of the table.
        machine: Whether the machine factor is told in the same rounds.
    """
    for row in rows:
        prove(row.name, (await row.visits.answer()).body, row.proof)
    known = await anchors.contestants() if machine else {}
    times = await race({**known, **{row.name: row.visits for row in rows}}, rounds=rounds, requests=requests)
    report = Report.of_race(title, prefix, times, bases={row.name: row.base for row in rows}, note=note)
    if machine:
        report.figures[f"{prefix}/machine"] = anchors.machine_factor(times)
        report.tables.append(anchors.machine(times))
    return report


def prove(name: str, answer: bytes | None, proof: bytes) -> None:
    """That an answer is what it is measured for.

    Raises:
        AssertionError: It is not; the text shows it.
    """
    if proof not in (answer or b""):
        raise AssertionError(f"{name} does not do what it is measured for: {answer!r}")
