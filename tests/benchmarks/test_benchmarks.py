"""The benchmarks run, each row does what it is measured for, and the gate fails above a budget. No time is judged."""

import pytest
from environments import require

require("mcp>=2")

from benchmarks import apps, calls, command, instructions, timing
from benchmarks.instructions import BUDGETS
from benchmarks.timing import Row
from benchmarks.traffic import Visits, message


def test_the_sections_run(capsys: pytest.CaptureFixture[str]) -> None:
    """Every row is proved to do what it is measured for before it is timed."""
    assert command.main(["--size", "tiny", "trivial", "sdk-json", "stores", "capacity", "burst"]) == 0
    printed = capsys.readouterr().out
    assert ("ours, session, tracked" in printed, printed.count("postgresql://")) == (True, 6)


async def test_a_contestant_that_does_something_else_is_not_timed() -> None:
    """Errors are fast, so each answer must hold what no other answer does."""
    impostor = Row("impostor", Visits.of(apps.trivial, message()), timing.ECHOED)
    with pytest.raises(AssertionError, match="impostor does not do what it is measured for"):
        await timing.run("", [impostor], rounds=1, requests=1)


@pytest.mark.parametrize(("part", "code"), [(1.0, 0), (1.1, 1)])
def test_a_count_over_its_budget_fails(part: float, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At its budget a count passes; a tenth more fails."""
    monkeypatch.setattr(instructions, "count", lambda size: {name: part * most for name, most in BUDGETS.items()})
    assert command.main(["--check", "--size", "tiny"]) == code


def test_more_calls_than_the_budget_fail(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """They are a reader's way through the package."""
    monkeypatch.setattr(instructions, "count", lambda size: dict(BUDGETS))
    monkeypatch.setitem(calls.BUDGETS, "ours, session", 10)
    assert command.main(["--check", "--size", "tiny"]) == 1
    assert "ours, session: 1" in capsys.readouterr().out
