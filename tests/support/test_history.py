"""`history`: the check of recorded histories finds exactly what a search through all orders finds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
from history import Kind, Operation, Outcome, Recorder, Rule, violations
from hypothesis import given
from hypothesis import strategies as st


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


# --- against a search through all orders ---------------------------------------------------------

Step = tuple[int, str]  # the place of an operation, and what happens in it


def steps(history: list[Operation]) -> Iterator[Step]:
    """Yield the steps that must or may happen at one moment each; a delete first checks that the session lives."""
    for place, operation in enumerate(history):
        if operation.outcome != "unknown":
            yield place, "use" if operation.kind == "delete" else operation.kind
        if operation.kind == "delete" and operation.outcome != "refused":
            yield place, "end"
        if operation.kind == "add" and operation.outcome == "unknown":
            yield place, "add"


def after(operation: Operation, what: str, state: tuple[bool, int]) -> tuple[bool, int] | None:
    """Return the state of a correct session after a step, or None where it would not have answered so."""
    live, number = state
    if what == "end":
        return False, number
    if operation.outcome == "unknown":
        return live, number + live
    if live is not (operation.outcome == "accepted"):
        return None
    number += what == "add" and live
    return (live, number) if operation.number == number or not operation.has_number else None


def explained(history: list[Operation], left: frozenset[Step], state: tuple[bool, int] = (True, 0)) -> bool:
    """Whether some order of the remaining steps explains every answer."""
    if all(history[place].outcome == "unknown" for place, _ in left):
        return True
    for step in left:
        operation = history[step[0]]
        first = not any(history[place].ended < operation.began for place, _ in left)
        looked = step[1] != "end" or (step[0], "use") not in left
        then = after(operation, step[1], state) if first and looked else None
        if then is not None and explained(history, left - {step}, then):
            return True
    return False


TIMES = st.tuples(st.integers(0, 8), st.integers(0, 4)).map(lambda pair: (pair[0], sum(pair)))
KINDS: tuple[Kind, ...] = ("use", "add", "read", "delete")
OUTCOMES: tuple[Outcome, ...] = ("accepted", "refused", "unknown")


@st.composite
def histories(draw: st.DrawFn, longest: int) -> list[Operation]:
    """Draw the answers of a correct session: each operation happens at a moment between its times."""
    asked = draw(st.lists(st.tuples(st.sampled_from(KINDS), TIMES, st.integers(0, 4), st.booleans()), max_size=longest))
    history, live, number = [], True, 0
    for kind, (began, ended), _moment, lost in sorted(asked, key=lambda each: min(each[1][0] + each[2], each[1][1])):
        number += live and kind == "add"
        outcome: Outcome = "accepted" if live else "refused"
        live = live and kind != "delete"
        answered = Operation(kind, "A", began, ended, outcome, number if outcome == "accepted" else 0)
        history.append(replace(answered, outcome="unknown", ended=math.inf, number=0) if lost else answered)
    return history


@st.composite
def altered(draw: st.DrawFn) -> list[Operation]:
    """Draw a short history in which some answers, times and numbers were changed."""
    history = draw(histories(5))
    for place in draw(st.sets(st.sampled_from(range(len(history))), max_size=2)) if history else ():
        began, ended = draw(TIMES)
        outcome = draw(st.sampled_from(OUTCOMES))
        number = draw(st.integers(0, 5)) if outcome == "accepted" else 0
        last = math.inf if outcome == "unknown" else ended
        history[place] = Operation(history[place].kind, "A", began, last, outcome, number)
    return history


@given(histories(40))
def test_a_correct_session_has_no_violation(history: list[Operation]) -> None:
    """A correct session has no violation, however its operations overlap and whichever were not answered."""
    assert violations(history) == []


@given(altered())
def test_the_check_agrees_with_a_search_through_all_orders(history: list[Operation]) -> None:
    """A history has a violation exactly when no order of its operations explains the answers."""
    assert (violations(history) == []) is explained(history, frozenset(steps(history)))
