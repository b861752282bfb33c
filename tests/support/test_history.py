"""`history`: what the check of recorded histories finds, and that it finds what a search through all orders finds."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from apps import Server
from clients import SECRET, Client
from history import Kind, Operation, Outcome, Recorder, Rule, violations
from hypothesis import given
from hypothesis import strategies as st

from mcp_sessions import MCPSessionMiddleware, Session
from mcp_sessions._session.claims import Claims
from mcp_sessions._session.data import Namespace
from mcp_sessions.stores import make
from mcp_sessions.stores.base import Standing, Store
from mcp_sessions.stores.memory import MemoryStore


def done(kind: Kind, began: float, ended: float, number: int = 0, *, session: str = "A") -> Operation:
    """An accepted operation."""
    return Operation(kind, session, began, ended, "accepted", number)


def refused(kind: Kind, began: float, ended: float) -> Operation:
    return Operation(kind, "A", began, ended, "refused")


def unanswered(kind: Kind, began: float) -> Operation:
    return Operation(kind, "A", began, math.inf, "unknown")


# --- what is found -------------------------------------------------------------------------------

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
def test_what_must_not_be_is_named_with_the_operations_that_show_it(case: str) -> None:
    """The rule, and the pair of operations that cannot both be."""
    rule, operations = BROKEN[case]
    found = violations([*ELSEWHERE.get(case, ()), *operations])
    assert [(each.rule, each.operations) for each in found if each.rule is rule] == [(rule, tuple(operations))]


@pytest.mark.parametrize("case", HELD)
def test_what_may_be_is_no_violation(case: str) -> None:
    """Operations that overlap may have happened in either order, and what was not answered may have happened."""
    assert violations(HELD[case]) == []


def test_a_violation_reads_as_a_sentence() -> None:
    """The rule first, then each operation with its times and its number."""
    (found,) = violations([done("add", 0, 1, 1), done("add", 2, 3.5, 1), unanswered("use", 1)])[:1]
    assert str(found) == (
        "two updates came to the same number\n"
        "    add in A -> 1, accepted, 0.000000 to 1.000000 s\n"
        "    add in A -> 1, accepted, 2.000000 to 3.500000 s"
    )


def test_a_recorder_writes_down_how_each_operation_was_answered() -> None:
    """With its times; one that raised was not answered, and might still happen."""
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
    """What must, or may, happen at one moment each. A delete first looks whether the session lives."""
    for place, operation in enumerate(history):
        if operation.outcome != "unknown":
            yield place, "use" if operation.kind == "delete" else operation.kind
        if operation.kind == "delete" and operation.outcome != "refused":
            yield place, "end"
        if operation.kind == "add" and operation.outcome == "unknown":
            yield place, "add"


def after(operation: Operation, what: str, state: tuple[bool, int]) -> tuple[bool, int] | None:
    """What a session that behaves is like after a step, or None where it would not have answered so."""
    live, number = state
    if what == "end":
        return False, number
    if operation.outcome == "unknown":
        return live, number + live
    if live is not (operation.outcome == "accepted"):
        return None
    number += what == "add" and live
    return (live, number) if operation.number == number or not operation.told else None


def explained(history: list[Operation], left: frozenset[Step], state: tuple[bool, int] = (True, 0)) -> bool:
    """Whether some order of the steps that are left explains every answer."""
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
    """What a session that behaves answers: each operation happens at a moment between its times."""
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
    """A short history in which some answers, times and numbers were changed."""
    history = draw(histories(5))
    for place in draw(st.sets(st.sampled_from(range(len(history))), max_size=2)) if history else ():
        began, ended = draw(TIMES)
        outcome = draw(st.sampled_from(OUTCOMES))
        number = draw(st.integers(0, 5)) if outcome == "accepted" else 0
        last = math.inf if outcome == "unknown" else ended
        history[place] = Operation(history[place].kind, "A", began, last, outcome, number)
    return history


@given(histories(40))
def test_a_session_that_behaves_is_never_accused(history: list[Operation]) -> None:
    """However its operations overlap, and whichever of them were not answered."""
    assert violations(history) == []


@given(altered())
def test_the_check_agrees_with_a_search_through_all_orders(history: list[Operation]) -> None:
    """A history is accused exactly when no order of its operations explains the answers."""
    assert (violations(history) == []) is explained(history, frozenset(steps(history)))


# --- stores that behave, and stores that do not --------------------------------------------------


class Flawed:
    """A store that passes everything on to one that behaves, but for what a subclass does instead."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class Caching(Flawed):
    """Remembers what the other store said of a session, as if it could not change."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._said: dict[str, Standing] = {}

    async def status(self, claims: Claims) -> Standing:
        if claims.ref not in self._said:
            self._said[claims.ref] = await self._store.status(claims)
        return self._said[claims.ref]


class Hasty(Flawed):
    """Says that a session has ended before it has."""

    async def revoke(self, ref: str, **_: Any) -> bool:
        return True


class Evicting(Flawed):
    """Has room for one revocation, and forgets the one before."""

    _last = ""

    async def revoke(self, ref: str, **how: Any) -> bool:
        Evicting._last = ref
        return await self._store.revoke(ref, **how)

    async def status(self, claims: Claims) -> Standing:
        standing = await self._store.status(claims)
        return standing if claims.ref == Evicting._last else Standing.LIVE


class Interleaving(Flawed):
    """Adds in two steps, between which another may come."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._reading = 0
        self._two_have_read = anyio.Event()

    async def add(self, shelf: Namespace, key: str, by: int) -> int:
        value = int(await self._store.read(shelf, key) or 0) + by
        self._reading += 1
        if self._reading == 2:
            self._two_have_read.set()
        await self._two_have_read.wait()
        await self._store.write(shelf, key, b"%d" % value)
        return value


async def count(session: Session | None, arguments: dict[str, Any]) -> int:
    """A tool that counts in the session."""
    assert session is not None
    return await session.data.increment("calls")


async def ask(recorder: Recorder, client: Client, kind: Kind, name: str, session: dict[str, str]) -> None:
    """One request, written down."""
    with recorder.operation(kind, name) as written:
        if kind == "delete":
            answer = await client.delete(session)
        else:
            answer = await client.tool("count" if kind == "add" else "whoami", session=session)
        if "error" in answer.json:
            assert answer.error["code"] == -32043
            written.refused()
        else:
            written.accepted(answer.result["content"] if kind == "add" else 0)


async def played(stores: Sequence[Any]) -> list[Operation]:
    """What parallel clients saw of a worker for each store: they count, delete their sessions and try them again."""
    clients = [Client(MCPSessionMiddleware(Server(count=count), keys=SECRET, store=store)) for store in stores]
    recorder = Recorder()
    sessions = {name: await clients[0].create() for name in "ABCD"}

    async def everywhere(kind: Kind) -> None:
        async with anyio.create_task_group() as group:
            for name, session in sessions.items():
                for client in clients:
                    group.start_soon(ask, recorder, client, kind, name, session)

    for kind in ("add", "add", "delete", "use"):
        await everywhere(kind)
    return recorder.operations


FLAWED: dict[type[Flawed], Rule] = {
    Caching: Rule.REVIVED,
    Hasty: Rule.REVIVED,
    Evicting: Rule.REVIVED,
    Interleaving: Rule.REPEATED,
}


@pytest.mark.parametrize("flawed", FLAWED)
async def test_a_flaw_of_a_store_is_found_by_what_parallel_clients_see(flawed: type[Flawed]) -> None:
    """Two workers on one store, each with the flaw in between."""
    store = MemoryStore()
    history = await played([flawed(store), flawed(store)])
    assert FLAWED[flawed] in {found.rule for found in violations(history)}


@pytest.mark.parametrize("url", ["memory:", "sqlite:{folder}/sessions.db"])
async def test_a_store_that_behaves_passes(url: str, tmp_path: Path) -> None:
    """The same clients and workers, and nothing in between."""
    store = make(url.format(folder=tmp_path), clock=time.time, timeout=60)
    await store.open()  # as at the start of a server
    history = await played([store, store])
    await store.close()
    assert violations(history) == []
    assert {(each.kind, each.outcome) for each in history} >= {("delete", "accepted"), ("use", "refused")}
