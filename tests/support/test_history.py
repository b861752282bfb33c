"""`history`: the check of recorded histories finds exactly what a search through all orders finds."""

from __future__ import annotations

import math

import pytest
from history import Kind, Operation, Recorder, Rule, violations


def done(kind: Kind, began: float, ended: float, number: int = 0, *, session: str = "A") -> Operation:
    """An accepted operation."""
    return Operation(kind, session, began, ended, "accepted", number)


def refused(kind: Kind, began: float, ended: float) -> Operation:
    return Operation(kind, "A", began, ended, "refused")


def unanswered(kind: Kind, began: float) -> Operation:
    return Operation(kind, "A", began, math.inf, "unknown")


# --- violations ----------------------------------------------------------------------------------

DELETE = done("delete", 10, 12)
BROKEN = {
    "accepted after an acknowledged delete": (Rule.REVIVED, [DELETE, done("use", 13, 14)]),
    "deleted twice, one after the other": (Rule.REVIVED, [DELETE, done("delete", 13, 14)]),
    "accepted after a refusal": (Rule.WAVERED, [refused("use", 10, 11), done("use", 12, 13)]),
    "refused before the delete began": (Rule.EARLY, [refused("use", 5, 9), DELETE]),
    "refused and never deleted": (Rule.EARLY, [refused("use", 5, 9)]),
    "one number twice": (Rule.REPEATED, [done("add", 0, 5, 1), done("add", 1, 6, 1)]),
    "an update that a later one does not count": (Rule.LOST, [done("add", 0, 1, 2), done("add", 2, 3, 1)]),
    "an update that a later reading does not show": (Rule.LOST, [done("add", 0, 1, 1), done("read", 2, 3, 0)]),
    "a reading that goes back": (Rule.LOST, [done("read", 0, 1, 1), done("read", 2, 3, 0)]),
    "an update that does not count": (Rule.LOST, [done("add", 0, 1, 0)]),
    "an update that counted twice": (Rule.INVENTED, [done("add", 0, 1, 2)]),
    "an update that was not answered and began too late": (Rule.INVENTED, [done("add", 9, 14, 2)]),
}
ELSEWHERE = {  # what these cases need beside the operations that show the violation
    "accepted after a refusal": [done("delete", 9, 20)],
    "an update that a later one does not count": [done("add", 0, 9, 3)],
    "a reading that goes back": [unanswered("add", 0)],
    "an update that was not answered and began too late": [DELETE, unanswered("add", 13)],
}
HELD = {
    "refused while it is being deleted": [DELETE, refused("use", 11, 11.5), done("use", 9, 11)],
    "accepted while it is being deleted": [DELETE, done("use", 11, 13)],
    "refused after a delete that was not answered": [unanswered("delete", 5), refused("use", 6, 7)],
    "accepted after a delete that was not answered": [unanswered("delete", 5), done("use", 6, 7)],
    "deleted twice at the same time": [done("delete", 0, 2), done("delete", 1, 3), refused("use", 2, 3)],
    "not answered after a delete": [DELETE, unanswered("use", 13)],
    "numbers in either order at the same time": [done("add", 0, 5, 2), done("add", 1, 6, 1)],
    "an update that was not answered and counted": [unanswered("add", 0), done("add", 1, 2, 2)],
    "an update that was not answered and did not count": [unanswered("add", 0), done("add", 1, 2, 1)],
    "a reading during an update": [done("add", 0, 5, 1), done("read", 1, 2, 0), done("read", 3, 4, 1)],
    "sessions that do not know each other": [DELETE, done("add", 13, 14, 1, session="B")],
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_violation_names_the_rule_and_the_operations(case: str) -> None:
    """A history that breaks a rule is reported with the operations that contradict each other."""
    rule, operations = BROKEN[case]
    found = violations([*ELSEWHERE.get(case, ()), *operations])
    assert [(each.rule, each.operations) for each in found if each.rule is rule] == [(rule, tuple(operations))]


@pytest.mark.parametrize("case", HELD)
def test_a_possible_history_has_no_violation(case: str) -> None:
    """Overlapping operations may have happened in either order, and unanswered ones may have happened or not."""
    assert violations(HELD[case]) == []


def test_a_violation_reads_as_a_sentence() -> None:
    """The text of a violation has the rule, and each operation with its number and times."""
    (found,) = violations([done("add", 0, 1, 1), done("add", 2, 3.5, 1), unanswered("use", 1)])[:1]
    assert str(found) == (
        "two updates came to the same number\n"
        "    add in A -> 1, accepted, 0.000000 to 1.000000 s\n"
        "    add in A -> 1, accepted, 2.000000 to 3.500000 s"
    )


def test_a_recorder_keeps_the_times_and_answer_of_each_operation() -> None:
    """An operation that raised is recorded as unanswered."""
    recorder = Recorder(clock=iter(range(10)).__next__)
    with recorder.operation("add", "A") as answer:
        answer.accepted(7)
    with recorder.operation("use", "A") as answer:
        answer.refused()
    with pytest.raises(ConnectionError), recorder.operation("add", "A"):
        raise ConnectionError
    assert recorder.operations == [done("add", 0, 1, 7), refused("use", 2, 3), unanswered("add", 4)]
