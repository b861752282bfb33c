"""Recorded histories of what clients did, and a check whether a correct store could have answered so.

A history is linearizable if every operation could have happened at one moment between its two times: a session is
live until one moment, and an update adds one to a number. An unanswered operation may have happened at any time after
it began, or never.
Source: Herlihy and Wing, Linearizability: a correctness condition for concurrent objects (1990).
"""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Literal

Kind = Literal["use", "add", "read", "delete"]  # `add` adds one and answers the sum; `read` answers the sum so far
Outcome = Literal["accepted", "refused", "unknown"]


@dataclass(frozen=True, slots=True)
class Operation:
    """One request and its outcome."""

    kind: Kind  # each is a use of its session, too
    session: str
    began: float  # seconds
    ended: float  # seconds; infinite where it was not answered
    outcome: Outcome
    number: int = 0  # the answer of an accepted `add` or `read`

    def __str__(self) -> str:
        came_to = f" -> {self.number}" if self.has_number else ""
        return f"{self.kind} in {self.session}{came_to}, {self.outcome}, {self.began:.6f} to {self.ended:.6f} s"

    @property
    def has_number(self) -> bool:
        """Whether it was answered with a number."""
        return self.outcome == "accepted" and self.kind in {"add", "read"}


class Rule(Enum):
    """What a history must not show."""

    REVIVED = "accepted after an acknowledged delete"
    WAVERED = "accepted after the session had been refused"
    EARLY = "refused before a delete began"
    REPEATED = "two updates came to the same number"
    LOST = "an acknowledged update is missing from a later number"
    INVENTED = "a number higher than the updates before it can make"


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken rule, and the operations that show it, in order."""

    rule: Rule
    operations: tuple[Operation, ...]

    def __str__(self) -> str:
        return "\n    ".join([self.rule.value, *map(str, self.operations)])


class Recorder:
    """Records a history from any number of tasks and threads.

    Args:
        clock: Returns seconds; the default is one clock for all processes of a machine.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.operations: list[Operation] = []
        self._clock = clock

    @contextmanager
    def operation(self, kind: Kind, session: str) -> Iterator[Answer]:
        """Record the operation in the block, as unanswered unless the block sets an answer."""
        answer = Answer()
        began = self._clock()
        try:
            yield answer
        finally:
            ended = math.inf if answer.outcome == "unknown" else self._clock()
            self.operations.append(Operation(kind, session, began, ended, answer.outcome, answer.number))


class Answer:
    """The answer to an operation."""

    outcome: Outcome = "unknown"
    number: int = 0

    def accepted(self, number: int = 0) -> None:
        self.outcome, self.number = "accepted", number

    def refused(self) -> None:
        """Note the answer that the session has ended."""
        self.outcome = "refused"


def violations(history: Iterable[Operation]) -> list[Violation]:
    """Return why a correct store could not have answered so; empty where it could.

    Args:
        history: Operations in any order and any number of sessions, among them every update.
    """
    by_session: defaultdict[str, list[Operation]] = defaultdict(list)
    for operation in history:
        by_session[operation.session].append(operation)
    return [found for each in by_session.values() for rule in (_standing, _numbers) for found in rule(each)]


def _standing(history: Sequence[Operation]) -> Iterator[Violation]:
    """Check that a session ended at one moment: no earlier refusal, and no later acceptance.

    An accepted delete was accepted as a use first, so two deletes at the same time may both be accepted.
    """
    accepted = [each for each in history if each.outcome == "accepted"]
    refused = [each for each in history if each.outcome == "refused"]
    deletes = [each for each in history if each.kind == "delete" and each.outcome != "refused"]
    latest = max(accepted, key=_began, default=None)
    if latest is not None:
        acknowledged = (each for each in deletes if each.outcome == "accepted")
        yield from _before(Rule.REVIVED, min(acknowledged, key=_ended, default=None), latest)
        yield from _before(Rule.WAVERED, min(refused, key=_ended, default=None), latest)
    if refused:
        earliest, delete = min(refused, key=_ended), min(deletes, key=_began, default=None)
        if delete is None:
            yield Violation(Rule.EARLY, (earliest,))
        else:
            yield from _before(Rule.EARLY, earliest, delete)


def _before(rule: Rule, first: Operation | None, second: Operation) -> Iterator[Violation]:
    """Yield a violation where the first operation had ended before the second began."""
    if first is not None and first.ended < second.began:
        yield Violation(rule, (first, second))


def _numbers(history: Sequence[Operation]) -> Iterator[Violation]:
    """Check that every update counts once, in an order that agrees with the times."""
    numbered = [each for each in history if each.has_number]
    yield from _repeated(each for each in numbered if each.kind == "add")
    yield from _lost(numbered)
    yield from _invented(history, numbered)


def _repeated(adds: Iterable[Operation]) -> Iterator[Violation]:
    seen: dict[int, Operation] = {}
    for add in sorted(adds, key=_began):
        if add.number in seen:
            yield Violation(Rule.REPEATED, (seen[add.number], add))
        seen[add.number] = add


def _lost(numbered: Sequence[Operation]) -> Iterator[Violation]:
    """Check that an operation that began after another ended counts at least as far, and an update further."""
    ending = deque(sorted(numbered, key=_ended))
    highest: list[Operation] = []
    for later in sorted(numbered, key=_began):
        while ending[0].ended < later.began:
            highest = [max([*highest, ending.popleft()], key=_number)]
        if later.number < sum(map(_number, highest)) + (later.kind == "add"):
            yield Violation(Rule.LOST, (*highest, later))


def _invented(history: Sequence[Operation], numbered: Sequence[Operation]) -> Iterator[Violation]:
    """Check that missing numbers are those of unanswered updates that had begun in a live session."""
    over = min((each.ended for each in history if each.outcome == "refused" or each.kind == "delete"), default=math.inf)
    numbers = sorted({each.number for each in numbered if each.kind == "add"})
    unanswered = sorted(each.began for each in history if each.kind == "add" and each.outcome == "unknown")
    for each in numbered:
        if each.number - bisect_right(numbers, each.number) > bisect_right(unanswered, min(each.ended, over)):
            yield Violation(Rule.INVENTED, (each,))


def _began(operation: Operation) -> float:
    return operation.began


def _ended(operation: Operation) -> float:
    return operation.ended


def _number(operation: Operation) -> int:
    return operation.number
