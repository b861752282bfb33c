"""Recorded histories of what clients did, and whether a store that behaves could have answered so.

An operation has the times at which it began and ended and what came of it. A history is linearizable where every
operation could have happened at one moment between its two times: a session is live until one moment, at which it
ends for everybody, and an update adds one to a number. What was not answered may have happened or not, at any time
after it began. Nothing here knows a store, a network or a clock of its own.
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
    """What one client asked for, and what came of it.

    Args:
        kind: What was asked for. Each is a use of its session, too.
        session: In which session.
        began: When it was sent, seconds.
        ended: When it was answered, seconds; infinite where it was not.
        outcome: How it was answered.
        number: What an accepted `add` or `read` came to.
    """

    kind: Kind
    session: str
    began: float
    ended: float
    outcome: Outcome
    number: int = 0

    def __str__(self) -> str:
        came_to = f" -> {self.number}" if self.told else ""
        return f"{self.kind} in {self.session}{came_to}, {self.outcome}, {self.began:.6f} to {self.ended:.6f} s"

    @property
    def told(self) -> bool:
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
    """A rule that was broken, and the operations that show it: mostly two, the earlier one first."""

    rule: Rule
    operations: tuple[Operation, ...]

    def __str__(self) -> str:
        return "\n    ".join([self.rule.value, *map(str, self.operations)])


class Recorder:
    """Writes a history down while it happens, from any number of tasks and threads.

    Args:
        clock: Tells the time in seconds. The default is one clock for all processes of a machine.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.operations: list[Operation] = []
        self._clock = clock

    @contextmanager
    def operation(self, kind: Kind, session: str) -> Iterator[Answer]:
        """Record what happens in the block. Unless the block says how it was answered, nobody knows."""
        answer = Answer()
        began = self._clock()
        try:
            yield answer
        finally:
            ended = math.inf if answer.outcome == "unknown" else self._clock()
            self.operations.append(Operation(kind, session, began, ended, answer.outcome, answer.number))


class Answer:
    """How an operation was answered, as far as is known."""

    outcome: Outcome = "unknown"
    number: int = 0

    def accepted(self, number: int = 0) -> None:
        """It was done."""
        self.outcome, self.number = "accepted", number

    def refused(self) -> None:
        """The session was said to have ended."""
        self.outcome = "refused"


def violations(history: Iterable[Operation]) -> list[Violation]:
    """Why no store that behaves could have answered so; empty where one could.

    Args:
        history: What was done, in any order and in any number of sessions. Every update is in it.
    """
    by_session: defaultdict[str, list[Operation]] = defaultdict(list)
    for operation in history:
        by_session[operation.session].append(operation)
    return [found for each in by_session.values() for rule in (_standing, _numbers) for found in rule(each)]


def _standing(history: Sequence[Operation]) -> Iterator[Violation]:
    """There is one moment at which the session ended: no earlier refusal, and no later acceptance.

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
    """The rule is broken where the first operation had ended before the second began."""
    if first is not None and first.ended < second.began:
        yield Violation(rule, (first, second))


def _numbers(history: Sequence[Operation]) -> Iterator[Violation]:
    """Every update counts once, in an order that agrees with their times."""
    told = [each for each in history if each.told]
    yield from _repeated(each for each in told if each.kind == "add")
    yield from _lost(told)
    yield from _invented(history, told)


def _repeated(adds: Iterable[Operation]) -> Iterator[Violation]:
    seen: dict[int, Operation] = {}
    for add in sorted(adds, key=_began):
        if add.number in seen:
            yield Violation(Rule.REPEATED, (seen[add.number], add))
        seen[add.number] = add


def _lost(told: Sequence[Operation]) -> Iterator[Violation]:
    """Whatever began after an operation had ended counts at least as far, and an update further."""
    ending = deque(sorted(told, key=_ended))
    highest: list[Operation] = []
    for later in sorted(told, key=_began):
        while ending[0].ended < later.began:
            highest = [max([*highest, ending.popleft()], key=_number)]
        if later.number < sum(map(_number, highest)) + (later.kind == "add"):
            yield Violation(Rule.LOST, (*highest, later))


def _invented(history: Sequence[Operation], told: Sequence[Operation]) -> Iterator[Violation]:
    """Numbers that no answer told are those of updates that were not answered and had begun, in a live session."""
    over = min((each.ended for each in history if each.outcome == "refused" or each.kind == "delete"), default=math.inf)
    numbers = sorted({each.number for each in told if each.kind == "add"})
    unanswered = sorted(each.began for each in history if each.kind == "add" and each.outcome == "unknown")
    for each in told:
        if each.number - bisect_right(numbers, each.number) > bisect_right(unanswered, min(each.ended, over)):
            yield Violation(Rule.INVENTED, (each,))


def _began(operation: Operation) -> float:
    return operation.began


def _ended(operation: Operation) -> float:
    return operation.ended


def _number(operation: Operation) -> int:
    return operation.number
