"""The sending side of a response: every cell of its table, and every sequence of events."""

from collections.abc import Iterator
from typing import get_args

import pytest

from mcp_sessions._protocol import outgoing
from mcp_sessions._protocol.outgoing import TABLE, Action, Event, Outgoing, State

SENT = ("sent", "sent_last", "failed")
# state: what HOLD, HINT, SEND, SENT, SENT_LAST, FAILED and CUT lead to, and the action
CELLS = {
    "waiting": "waiting/keep hinting/forward sending/forward waiting done waiting refused/refuse",
    "hinting": "hinting/keep hinting/forward sending/forward waiting done waiting refusing",
    "refusing": "refusing/drop refusing/drop refusing/drop refused/refuse done refused refusing/drop",
    "refused": "refused/drop refused/drop refused/drop refused refused refused refused/drop",
    "passing": "- sending/forward sending/forward passing done passing ended/end",
    "sending": "- sending/forward sending/forward passing done passing ending",
    "ending": "ending/drop ending/drop ending/drop ended/end done ended ending/drop",
    "ended": "ended/drop ended/drop ended/drop ended ended ended ended/drop",
    "done": "- done/forward done/forward done done done done/drop",
}


@pytest.mark.parametrize("state", get_args(State))
def test_each_cell_has_its_next_state_and_action(state: State) -> None:
    for event, cell in zip(get_args(Event), CELLS[state].split(), strict=True):
        after, _, action = cell.partition("/")
        assert TABLE[state].get(event) == (None if cell == "-" else (after, action or "nothing")), event


def test_table_names_every_state_event_and_action() -> None:
    assert set(TABLE) == set(get_args(State))
    assert {event for row in TABLE.values() for event in row} == set(get_args(Event))
    assert {action for row in TABLE.values() for _, action in row.values()} == set(get_args(Action))


Step = tuple[Event, Action, int]  # with the number of sends that are on their way


def sequences(length: int, *, tasks: int) -> Iterator[list[Step]]:
    """Yield every sequence of events of an application that sends in so many tasks at once."""
    stack: list[tuple[State, int, list[Step]]] = [("waiting", 0, [])]
    while stack:
        state, on_its_way, steps = stack.pop()
        if steps:
            yield steps
        if len(steps) == length:
            continue
        for event, (after, action) in TABLE[state].items():
            if (event in SENT and not on_its_way) or (event in {"hint", "send"} and on_its_way == tasks):
                continue
            moving = on_its_way + (action == "forward") - (event in SENT)
            stack.append((after, moving, [*steps, (event, action, moving)]))


@pytest.mark.parametrize(("tasks", "length"), [(1, 8), (2, 7)])
def test_response_ends_once_and_nothing_follows_a_cut(tasks: int, length: int) -> None:
    """A response that is cut has one start and one end, and two tasks send at once only if the application does."""
    seen = 0
    for steps in sequences(length, tasks=tasks):
        seen += 1
        _, action, moving = steps[-1]
        before = steps[:-1]
        was_cut = any(done in {"refuse", "end"} for _, done, _ in before)
        has_left = any(done == "forward" and said == "send" for said, done, _ in before)
        if was_cut:
            assert action in {"drop", "nothing"}
        if action == "refuse":
            assert not has_left
        if action == "end":
            assert has_left
        if tasks == 1 and action in {"refuse", "end"}:
            assert not moving
        if any(said == "cut" for said, _, _ in before) and not any(said == "sent_last" for said, _, _ in before):
            assert action != "forward"
    assert seen > 10_000


def test_sets_of_states_cover_the_table() -> None:
    assert set(TABLE) - outgoing.UNSENT == {"passing", "sending", "ending", "ended", "done"}
    assert set(TABLE) - outgoing.CUT_OFF == {"waiting", "hinting", "passing", "sending", "done"}
    assert {*outgoing.CUT_OFF, "done"} == outgoing.OVER


def test_a_step_moves_to_the_next_state() -> None:
    response = Outgoing()
    assert [response.on(event) for event in (outgoing.HOLD, outgoing.SEND, outgoing.CUT, outgoing.SENT)] == [
        "keep",
        "forward",
        "nothing",
        "end",
    ]
    assert response.state == "ended"
