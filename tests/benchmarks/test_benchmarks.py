"""The benchmarks run, prove what they measure, and say what they found. No figure is judged here."""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path

import anyio
import pytest

import debian
import recorded
from environments import require

require("mcp>=2")

from benchmarks import anchors, apps, budgets, children, command, instructions, lineup, ours, page, plots, summary
from benchmarks.lineup import Row
from benchmarks.lonely import SpanAlone
from benchmarks.report import Report, Table
from benchmarks.size import SIZES
from benchmarks.timing import Times
from benchmarks.traffic import Arrival, Visits, message

TINY = SIZES["tiny"]
BEFORE = {"pass-through": 100, "session": 300, "core": 50}
ELSEWHERE = {"traced", "http", "loops", "crowd", "soak", "instructions"}  # need a process or a program of their own
IN_PROCESS = [name for name in command.SECTIONS if name not in ELSEWHERE]


@pytest.fixture(scope="module")
def reports() -> Mapping[str, Report]:
    """What every section finds that runs in this process."""
    return {name: command.run(name, TINY) for name in IN_PROCESS}


@pytest.fixture
def everything(reports: Mapping[str, Report]) -> Report:
    """All of it as one."""
    return Report.all(reports.values())


# --- the sections --------------------------------------------------------------------------------


@pytest.mark.parametrize("section", IN_PROCESS)
def test_a_section_gives_tables_and_figures(section: str, reports: Mapping[str, Report]) -> None:
    """Each row has a cell for each column, each figure is a number, and a terminal shows it all."""
    report = reports[section]
    assert report.tables
    assert all(len(row) == len(table.columns) for table in report.tables for row in table.rows)
    assert report.figures
    assert all(map(math.isfinite, report.figures.values()))
    shown = report.tables[0].text()
    assert all(cell in shown for row in report.tables[0].rows for cell in row)


def test_every_budget_reads_a_figure_that_a_section_finds(everything: Report) -> None:
    """But for recorded spans, which are measured in a process of their own."""
    lacking = {budget.figure for budget in budgets.BUDGETS} - everything.figures.keys()
    assert {name.split("/")[0] for name in lacking} == {"traced", "traced-sdk"}
    assert {budget.number for budget in budgets.BUDGETS} == set(range(1, 8))


def test_a_budget_and_its_machine_factor_come_from_one_section() -> None:
    """So a section that is run alone can be judged, and both are of the same rounds."""
    timed = [budget for budget in budgets.BUDGETS if budget.machine]
    assert all(budget.machine == f"{budget.figure.split('/')[0]}/machine" for budget in timed)


def test_spans_are_recorded_in_a_process_of_their_own() -> None:
    """A process has one tracer provider; the other tests keep theirs."""
    program = [sys.executable, "-m", "tests.benchmarks", "--size", "tiny", "traced"]
    done = subprocess.run(program, cwd=children.ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.count("With recorded spans, around") == 2


async def test_a_span_alone_says_what_ours_says() -> None:
    """So that what is made of it can be held against ours."""
    app = ours.wrap(apps.trivial)
    session = {"sessionId": ours.minted(1)[0]}
    with recorded.process_wide().recording() as spans:
        for traced in (app, SpanAlone(apps.trivial)):
            await Visits.of(traced, message(session=session)).answer()
    mine, alone = spans
    assert (mine.name, mine.kind) == (alone.name, alone.kind)
    assert (mine.attributes or {}).keys() - {recorded.ALIAS} == (alone.attributes or {}).keys()


# --- proofs --------------------------------------------------------------------------------------


async def test_a_contestant_that_does_something_else_is_no_contestant() -> None:
    """Errors are fast, so each answer must hold what it cannot hold otherwise."""
    impostor = Row("impostor", Visits.of(apps.trivial, message()), lineup.ECHOED)
    with pytest.raises(AssertionError, match="impostor does not do what it is measured for"):
        await lineup.run("", "", [impostor], rounds=1, requests=1)


async def test_nothing_comes_after_a_body() -> None:
    """As on a connection that stays open."""
    arrival = Arrival(b"body")
    assert (await arrival())["body"] == b"body"
    with anyio.move_on_after(0) as waited:
        await arrival()
    assert waited.cancelled_caught


# --- times ---------------------------------------------------------------------------------------


def test_times_are_compared_within_rounds() -> None:
    """A machine that is slow in one round is slow for both."""
    base, own = Times((10.0, 20.0, 40.0)), Times((15.0, 30.0, 60.0))
    assert (own.median, own.least, own.over(base)) == (30.0, 15.0, 10.0)
    assert own.throughput(base) == pytest.approx(2 / 3)
    assert own.spread == pytest.approx(0.75)


def test_the_machine_factor_is_the_middle_of_known_works() -> None:
    """So one library that has become slower, or quicker, does not move the budgets."""
    times = {known.name: Times((2 * known.there + 10 * (known.base is not None),)) for known in anchors.KNOWN}
    times |= {known.base: Times((10.0,)) for known in anchors.KNOWN if known.base is not None}
    assert anchors.machine_factor(times) == pytest.approx(2)
    times[anchors.KNOWN[0].name] = Times((1e6,))
    assert anchors.machine_factor(times) == pytest.approx(2)
    assert anchors.machine(times).rows[1][-1] == "2.00"


# --- budgets -------------------------------------------------------------------------------------


def test_a_budget_is_met_or_short_or_not_measured() -> None:
    """A time is read in times of the machine factor; exactly the limit is met."""
    budget = budgets.Budget(1, "a cost", "cost", 10, "us", "somehow", "machine")
    assert budget.verdict({}) == "not measured"
    assert budget.verdict({"cost": 20, "machine": 2}) == "met"
    assert budget.verdict({"cost": 25, "machine": 2}) == "short by 5 us"
    share = budgets.Budget(1, "a share", "share", 0.9, "", "somehow", at_least=True)
    assert share.verdict({"share": 0.9}) == "met"
    assert share.verdict({"share": 0.8}) == "short by 0.1"


def test_only_what_was_measured_is_shown_where_sections_are_named() -> None:
    """All budgets otherwise."""
    figures = {"core/limits": 3.0}
    assert len(budgets.table(figures, whole=False).rows) == 1
    assert len(budgets.table(figures).rows) == len(budgets.BUDGETS)


# --- side by side -------------------------------------------------------------------------------


def test_contestants_stand_side_by_side() -> None:
    """Each in times of ours; who was not measured is left out."""
    figures = {
        "trivial/ours, session/adds": 10.0,
        "trivial/BaseHTTPMiddleware, empty/adds": 25.0,
        "core/core/us": 4.0,
        **{f"instructions/{name}": float(number) for name, number in BEFORE.items()},
    }
    cells = {row[0]: row[1:] for row in summary.table(figures).rows}
    assert cells["BaseHTTPMiddleware, empty"][:3] == ("+25.0", "2.50", "")
    assert cells["ours, session"][2] == "+200"
    assert cells["ours, the pure core alone"][:3] == ("+4.0", "", "+50")
    assert list(cells) == ["ours, session", "ours, the pure core alone", "BaseHTTPMiddleware, empty"]


# --- instructions --------------------------------------------------------------------------------


def test_instructions_are_counted_and_held(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kept as a baseline, they are held against it by the next run."""
    debian.install("valgrind")
    monkeypatch.setattr(instructions, "BASELINE", tmp_path / "baseline.json")
    instructions.BASELINE.write_text("{}")
    assert command.main(["--size", "tiny", "--write-baseline"]) == 0
    kept = json.loads(instructions.BASELINE.read_text())[instructions.HERE]
    assert kept["pass-through"] < kept["session"]
    monkeypatch.setattr(instructions, "count", lambda *_: kept | {"session": 2 * kept["session"]})
    assert command.main(["--check"]) == 1
    assert "session: " in capsys.readouterr().out.splitlines()[-1]
    instructions.BASELINE.write_text("{}")
    assert command.main(["--check"]) == 0
    assert "no baseline" in capsys.readouterr().out
    assert asyncio.run(instructions.instructions(TINY)).figures["instructions/core"] == kept["core"]


def test_what_is_counted_runs_without_valgrind_too() -> None:
    """Two children for each subject, whose process ids are told; in a process of its own, since the last are traced."""
    told = [line.split(" ", 2) for line in children.output(instructions.PROGRAM, "3").splitlines()]
    assert [number for _, number, _ in told] == ["0", "3"] * (len(told) // 2)
    assert told[-1][2] == "a span alone"


def test_a_counter_that_is_missing_is_said_to_be(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And fails nothing."""
    monkeypatch.setenv("PATH", "")
    assert command.main(["--check"]) == 0
    assert asyncio.run(instructions.instructions(TINY)).tables[0].title in capsys.readouterr().out


def test_a_rise_of_more_than_five_per_cent_is_told() -> None:
    """Beyond the pass-through, in proportion to it, and never for what the baseline does not know."""
    assert instructions.risen(BEFORE, BEFORE) == []
    assert instructions.risen({**BEFORE, "session": 310}, BEFORE) == []
    assert instructions.risen({**BEFORE, "session": 311}, BEFORE) == [
        "session: 211 instructions per request where at most 210 are allowed"
    ]
    assert instructions.risen({name: 2 * number for name, number in BEFORE.items()}, BEFORE) == []
    assert instructions.risen({**BEFORE, "new": 10_000}, BEFORE) == []


# --- what is written -----------------------------------------------------------------------------


def test_the_generated_part_of_the_page_is_replaced(everything: Report, tmp_path: Path) -> None:
    """What stands around it stays; every image that it shows is there and is SVG."""
    page_file = tmp_path / page.PAGE
    page_file.write_text(f"before\n{page.BEGIN}\nold\n{page.END}\nafter\n")
    for _ in range(2):
        page.write(everything, [budgets.table(everything.figures)], "the last one", tmp_path)
    written = page_file.read_text()
    assert written.startswith("before\n")
    assert written.endswith("\nafter\n")
    assert "old" not in written
    assert written.count(page.BEGIN) == 1
    drawn = sorted(file.name for file in (tmp_path / page.IMAGES).iterdir())
    assert len(drawn) == 5
    for name in drawn:
        assert f"]({page.IMAGES}/{name})" in written
        assert ET.parse(tmp_path / page.IMAGES / name).getroot().tag.endswith("svg")


def test_a_run_of_some_sections_draws_what_it_has(tmp_path: Path) -> None:
    """No figures, no plots."""
    (tmp_path / page.PAGE).write_text(f"{page.BEGIN}\n{page.END}\n")
    page.write(Report([Table("One", ("", "us"), [("row", "1")])]), [], "the last one", tmp_path)
    assert not list((tmp_path / page.IMAGES).iterdir())
    assert "### One\n\n|  | us |\n| --- | ---: |\n| row | 1 |" in (tmp_path / page.PAGE).read_text()


def test_the_page_has_its_generated_part() -> None:
    """So that `--write-docs` finds where to write."""
    text = (page.DOCS / page.PAGE).read_text("utf-8")
    assert text.count(page.BEGIN) == text.count(page.END) == 1


def test_names_in_plots_are_escaped() -> None:
    """They are text, whatever they hold."""
    assert "a &lt; b" in plots.bars("", {"a < b": 1.0}, unit="us", ours="ours")


# --- the command line ----------------------------------------------------------------------------


def test_a_section_is_run_by_its_name(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Its tables and its budgets are printed; on request they are written down, too."""
    written: list[Report] = []
    monkeypatch.setattr(page, "write", lambda report, *_: written.append(report))
    assert command.main(["--size", "tiny", "core"]) == 0
    assert not written
    assert command.main(["--size", "tiny", "--write-docs", "core"]) == 0
    assert written[0].figures["core/limits"] > 0
    assert "Budgets" in capsys.readouterr().out


def test_a_name_that_is_no_section_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """With its name."""
    with pytest.raises(SystemExit):
        command.main(["nonsense"])
    assert "no section is called nonsense" in capsys.readouterr().err
