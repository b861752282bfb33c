"""The benchmarks run, prove what they measure, and report what they found. No figure is judged here."""

from __future__ import annotations

import math
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path

import anyio
import generated
import pytest
from environments import require

import debian

require("mcp>=2")

from benchmarks import apps, budgets, children, command, instructions, page, summary, timing
from benchmarks.report import Report, Table
from benchmarks.size import SIZES
from benchmarks.timing import Row, Times
from benchmarks.traffic import Arrival, Visits, message

TINY = SIZES["tiny"]
ELSEWHERE = {"traced", "soak", "instructions"}  # need a process or a program of their own
IN_PROCESS = [name for name in command.SECTIONS if name not in ELSEWHERE]


@pytest.fixture(scope="module")
def reports() -> Mapping[str, Report]:
    """What each section finds that runs in this process."""
    return {name: command.run(name, TINY) for name in IN_PROCESS}


@pytest.mark.parametrize("section", IN_PROCESS)
def test_a_section_gives_tables_and_figures(section: str, reports: Mapping[str, Report]) -> None:
    """Each row has a cell for each column, each figure is a number, and a terminal shows it all."""
    report = reports[section]
    assert all(len(row) == len(table.columns) for table in report.tables for row in table.rows)
    assert report.figures
    assert all(map(math.isfinite, report.figures.values()))
    shown = report.tables[0].text()
    assert all(cell in shown for row in report.tables[0].rows for cell in row)


def test_every_budget_reads_a_figure_that_a_section_finds(reports: Mapping[str, Report]) -> None:
    """The instructions are counted by a process of their own."""
    lacking = {budget.figure for budget in budgets.BUDGETS} - Report.all(reports.values()).figures.keys()
    assert all(figure.startswith("instructions/ours, ") for figure in lacking)


def test_spans_are_recorded_in_a_process_of_their_own() -> None:
    """A process has one tracer provider; the other tests keep theirs."""
    program = [sys.executable, "-m", "tests.tools.benchmarks", "--size", "tiny", "traced"]
    done = subprocess.run(program, cwd=children.ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.count("With recorded spans, around") == 2


async def test_a_contestant_that_does_something_else_is_not_timed() -> None:
    """Errors are fast, so each answer must hold what no other answer does."""
    impostor = Row("impostor", Visits.of(apps.trivial, message()), timing.ECHOED)
    with pytest.raises(AssertionError, match="impostor does not do what it is measured for"):
        await timing.run("", "", [impostor], rounds=1, requests=1)


async def test_nothing_comes_after_a_body() -> None:
    """As on a connection that stays open."""
    arrival = Arrival(b"body")
    assert (await arrival())["body"] == b"body"
    with anyio.move_on_after(0) as waited:
        await arrival()
    assert waited.cancelled_caught


def test_times_are_compared_within_rounds() -> None:
    """A machine that is slow in one round is slow for both."""
    base, own = Times((10.0, 20.0, 40.0)), Times((15.0, 30.0, 60.0))
    assert (own.median, own.over(base)) == (30.0, 10.0)
    assert own.throughput(base) == pytest.approx(2 / 3)
    assert Times((10.0, 10.0, 10.0)).spread == 0


def test_a_budget_is_met_or_short_or_not_measured() -> None:
    """Exactly the limit is met; budgets that were not measured are left out where sections are named."""
    budget = budgets.Budget("a cost", "cost", 10, "us", "somehow")
    assert budget.verdict({}) == "not measured"
    assert budget.verdict({"cost": 10}) == "met"
    assert budget.verdict({"cost": 1_500}) == "short by 1,490 us"
    share = budgets.Budget("a share", "share", 0.9, "", "somehow", at_least=True)
    assert share.verdict({"share": 0.9}) == "met"
    assert share.verdict({"share": 0.8}) == "short by 0.1"
    assert len(budgets.table({"import/ms": 3.0}, whole=False).rows) == 1
    assert len(budgets.table({}).rows) == len(budgets.BUDGETS)


def test_contestants_stand_side_by_side() -> None:
    """A contestant that was not measured is left out."""
    figures = {
        "trivial/ours, session/adds": 10.0,
        "trivial/ours, session/times": 1.0,
        "trivial/BaseHTTPMiddleware, empty/adds": 25.0,
        "trivial/pass-through, no session named/adds": 0.0,
        "sessions/1 sessions/adds": 1.0,
        "instructions/ours, session/more": 200.0,
    }
    cells = {row[0]: row[1:4] for row in summary.table(figures).rows}
    assert cells == {"ours, session": ("+10.0", "1.00", "+200"), "BaseHTTPMiddleware, empty": ("+25.0", "", "")}


def test_instructions_are_counted_and_held(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Within the budgets the gate is green; a count that is over its budget fails it, by name."""
    debian.install("valgrind")
    more = command.run("instructions", TINY).figures["instructions/ours, session/more"]
    assert more > 0
    counted = {"session": {"bare": 100_000, "ours": 200_000}}
    monkeypatch.setattr(instructions, "count", lambda *_: counted)
    assert command.main(["--check"]) == 0
    counted["session"]["ours"] = 300_000
    assert command.main(["--check"]) == 1
    assert "session: " in capsys.readouterr().out.splitlines()[-1]


def test_what_is_counted_runs_without_valgrind_too() -> None:
    """Four children for each subject, with their process ids; in a process of its own, since the last are traced."""
    lines = [line.split(" ", 3) for line in children.output(instructions.PROGRAM, "3").splitlines()]
    assert [number for _, number, *_ in lines] == ["0", "3"] * (len(lines) // 2)
    assert [way for _, _, way, _ in lines] == ["bare", "bare", "ours", "ours"] * (len(lines) // 4)
    held = {f"instructions/ours, {name}/more" for *_, name in lines}
    assert {budget.figure for budget in budgets.BUDGETS if budget.figure.endswith("/more")} <= held


def test_a_missing_counter_fails_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The gate and the section say that nothing was counted."""
    monkeypatch.setenv("PATH", "")
    assert command.main(["--check"]) == 0
    assert command.main(["--size", "tiny", "instructions"]) == 0
    assert capsys.readouterr().out.count(instructions.MISSING) == 2


def test_the_generated_parts_of_the_pages_are_replaced(reports: Mapping[str, Report], tmp_path: Path) -> None:
    """The text around them stays; the plot is SVG, and stays where a run has not measured it."""
    full, short = tmp_path / page.PAGE, tmp_path / page.SHORT
    full.parent.mkdir()
    for path in (full, short):
        path.write_text(f"before\n<!-- begin: written by `{page.COMMAND}` -->\nold\n<!-- end -->\nafter\n")
    for report in (reports["trivial"], Report([Table("One", ("", "us"), [("row", "1")])])):
        page.write(report, [Table("First", ("",), [])], "the last one", tmp_path)
    assert generated.part(full, page.COMMAND).startswith("Measured on ")
    assert full.read_text().startswith("before\n")
    assert full.read_text().endswith("### One\n\n|  | us |\n| --- | ---: |\n| row | 1 |\n\n<!-- end -->\nafter\n")
    assert [row.split(" | ")[0] for row in generated.part(short, page.COMMAND).splitlines()[2:8]] == [
        f"| {shown}" for shown in page.SHOWN.values()
    ]
    assert f"]({page.PLOT})" in short.read_text()
    assert ET.parse(tmp_path / page.PLOT).getroot().tag.endswith("svg")
    assert "a &lt; b" in page.bars("", {"a < b": 1.0})


def test_the_pages_have_their_generated_parts() -> None:
    """`--write-docs` finds where to write."""
    assert all(generated.part(generated.DOCS / name, page.COMMAND) for name in (page.PAGE, page.SHORT))


def test_a_section_is_run_by_its_name(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Its tables and its budgets are printed; on request they are written down, too."""
    written: list[Report] = []
    monkeypatch.setattr(page, "write", lambda report, *_: written.append(report))
    assert command.main(["--size", "tiny", "import"]) == 0
    assert not written
    assert command.main(["--size", "tiny", "--write-docs", "import"]) == 0
    assert written[0].figures["import/ms"] > 0
    assert "Budgets" in capsys.readouterr().out


def test_an_unknown_section_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """With its name."""
    with pytest.raises(SystemExit):
        command.main(["nonsense"])
    assert "no section is called nonsense" in capsys.readouterr().err
