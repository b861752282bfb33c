"""What runs the suite: environments made by uv or by pip, lanes that are judged, and a gate that no failure passes.

No program is started here: what would be is written down, and fails where a test says so.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from matrix import command, gate, making, running
from matrix.environments import EVERYDAY, Environment, own_environment
from matrix.making import StepFailed, Uv
from matrix.records import Run
from matrix.running import NOTHING_CHOSEN, Lane, Wanted
from matrix.steps import Step

HERE = replace(own_environment("main"), folder=Path(sys.prefix))


class Programs:
    """Stands in for `take`.

    Args:
        codes: Exit codes, by a part of the command line; 0 for all others.
        output: What each prints.
    """

    def __init__(self, codes: Mapping[str, int] | None = None, output: str = "said\nlast") -> None:
        self.lines: list[str] = []
        self.variables: list[Mapping[str, str]] = []
        self._codes = codes or {}
        self._output = output

    def __call__(self, name: str, line: Sequence[str | Path], variables: dict[str, str] | None = None) -> Step:
        self.lines.append(" ".join(map(str, line)))
        self.variables.append(variables or {})
        code = next((code for part, code in self._codes.items() if part in self.lines[-1]), 0)
        return Step(name, code, self._output, 0.0, 1.0, 1.0)


@pytest.fixture
def place(tmp_path: Path) -> Environment:
    """An environment that is not made yet."""
    return Environment("legacy", Path("/usr/bin/python3"), "3.12.0", tmp_path / ".venv-legacy")


# --- environments are made ------------------------------------------------------------------------


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    """Where uv is installed."""
    tools = replace(own_environment("uv"), folder=tmp_path / ".venv-uv")
    monkeypatch.setattr(making, "own_environment", lambda _: tools)
    monkeypatch.delenv("INSTALLER", raising=False)
    return tools


def installed(tools: Environment) -> Path:
    program = tools.python.with_name("uv")
    program.parent.mkdir(parents=True)
    program.touch()
    return program


def test_who_asks_for_pip_gets_pip(tools: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing is started to look for another."""
    monkeypatch.setenv("INSTALLER", "pip")
    monkeypatch.setattr(making, "take", programs := Programs())
    assert making.find_uv() is None
    assert programs.lines == []


def test_uv_is_installed_once(tools: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Into an environment of its own; and pip's settings are asked for each time."""
    monkeypatch.setattr(making, "take", programs := Programs(output="global.index-url='https://index.example'"))
    assert making.find_uv() is not None
    assert [line.rpartition(" ")[2] for line in programs.lines] == [str(tools.folder), making.UV, "list"]
    program = installed(tools)
    found = making.find_uv()
    assert found is not None
    assert (found.program, found.variables["UV_DEFAULT_INDEX"]) == (program, "https://index.example")
    assert len(programs.lines) == 4


@pytest.mark.parametrize(
    ("programs", "why"),
    [
        (Programs({"venv": 1}), "last"),
        (Programs(output="install.only-binary=':all:'"), "pip's setting only-binary has no counterpart in uv"),
    ],
)
def test_where_uv_cannot_do_it_pip_does_and_one_line_says_so(
    programs: Programs,
    why: str,
    tools: Environment,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It cannot be had, or pip has a setting that it does not know."""
    monkeypatch.setattr(making, "take", programs)
    assert making.find_uv() is None
    assert capsys.readouterr().out == f"pip installs, which takes longer than uv: {why}\n"


UV = Uv(Path("/tools/uv"), {"UV_INDEX": "https://index.example"})


@pytest.mark.parametrize("anew", [True, False])
@pytest.mark.parametrize("uv", [UV, None])
def test_an_environment_is_filled_by_the_one_that_installs(
    uv: Uv | None, anew: bool, place: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same requirements, and made anew first only where that is asked for."""
    monkeypatch.setattr(making, "take", programs := Programs())
    making.fill(uv, place, anew=anew)
    *made, line = programs.lines
    assert [one.startswith("/usr/bin/python3 -m venv --clear") for one in made] == [True] * anew
    assert line.endswith(" ".join(place.requirements))
    assert line.startswith("/tools/uv pip install" if uv else f"{place.python} -m pip")
    assert (programs.variables[-1].get("UV_INDEX") == "https://index.example") is (uv is not None)


def test_where_uv_does_not_succeed_pip_begins_anew(
    place: Environment, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is half installed is nobody's."""
    monkeypatch.setattr(making, "take", programs := Programs({"/tools/uv": 2}))
    making.fill(UV, place, anew=False)
    assert [line.split()[:3] for line in programs.lines[1:]] == [
        ["/usr/bin/python3", "-m", "venv"],
        [str(place.python), "-m", "pip"],
    ]
    assert "legacy: uv did not succeed, so pip installs (last)" in capsys.readouterr().out


def test_what_is_as_it_should_be_is_left_alone(
    place: Environment, tools: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stamp in the environment says what it holds."""
    installed(tools)
    place.folder.mkdir()
    monkeypatch.setattr(making, "take", programs := Programs(output=""))
    making.set_up_all([place])
    count = len(programs.lines)
    making.set_up_all([place])
    assert len(programs.lines) == count > 0
    making.set_up_all([replace(place, version="3.12.1")])
    assert len(programs.lines) > count


def test_a_set_up_that_fails_ends_with_what_was_printed(
    place: Environment, tools: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And with the command."""
    monkeypatch.setenv("INSTALLER", "pip")
    monkeypatch.setattr(making, "take", Programs({"venv": 3}))
    with pytest.raises(SystemExit, match=r"failed \(3\): /usr/bin/python3 -m venv .*\nsaid\nlast"):
        making.set_up_all([place])
    with pytest.raises(StepFailed):
        making.quietly("venv")


def test_a_python_that_makes_no_environments_is_told_the_remedy(
    place: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Debian's comes without."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(SystemExit, match=r"apt install python3\.\d+-venv"):
        making.set_up_all([place])


# --- lanes are run --------------------------------------------------------------------------------


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where runs are recorded; never where the run that this test belongs to is."""
    monkeypatch.setattr(running, "RECORDS", tmp_path / "records")
    return tmp_path / "records"


def test_each_lane_is_run_and_measured_by_itself(records: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the environment's own Python, with its own files, and nothing of ours around it."""
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    monkeypatch.setattr(running, "take", programs := Programs())
    runs = running.run_everywhere([HERE], Wanted(["-k", "one"], coverage=True, brief=True))
    assert len(runs) == len(programs.lines) == len({run.step.name for run in runs})
    assert all(line.startswith(f"{HERE.python} -m coverage run -m pytest ") for line in programs.lines)
    assert all(line.endswith(" -k one") for line in programs.lines)
    assert len({variables["COVERAGE_FILE"] for variables in programs.variables}) == len(runs)
    assert not any("PYTHONPATH" in variables for variables in programs.variables)
    assert (records / "coverage").is_dir()


@pytest.mark.parametrize(("spec", "lenient"), [("lowest", True), ("legacy", False)])
def test_warnings_are_errors_but_at_the_lower_bounds(
    spec: str, lenient: bool, records: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old versions warn of what has changed since."""
    monkeypatch.setattr(running, "take", programs := Programs())
    running.run_lane(Lane(replace(HERE, spec=spec), "rest", ["tests"]), Wanted([]))
    assert ("-W ignore" in programs.lines[0]) is lenient


@pytest.mark.parametrize(("args", "code"), [(["-k", "one"], 0), ([], NOTHING_CHOSEN)])
def test_a_lane_without_a_test_has_failed_unless_it_was_asked_for_some(
    args: list[str], code: int, records: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a lane could lose all of its tests, and nobody would see it."""
    monkeypatch.setattr(running, "take", Programs({"pytest": NOTHING_CHOSEN}))
    assert running.run_lane(Lane(HERE, "rest", ["tests"]), Wanted(args)).step.code == code


def test_coverage_is_combined_and_held_against_its_floor(records: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By two commands, both of which count."""
    monkeypatch.setattr(running, "take", programs := Programs({"report": 2}))
    assert [step.code for step in running.combine_coverage(HERE)] == [0, 2]
    assert programs.lines[0].endswith(f"combine --quiet {records / 'coverage'}")


# --- the gate -------------------------------------------------------------------------------------


@pytest.fixture
def tested(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """What the tests of a gate's run came to."""
    runs = [Run(HERE, Step("main rest", 0, "", 1.0, 2.0, 1.0), passed={"a::test"})]
    monkeypatch.setattr(gate, "run_everywhere", lambda *_: runs)
    monkeypatch.setattr(gate, "combine_coverage", lambda _: [Step("coverage report", 0, "", 2.0, 3.0, 1.0)])
    return runs


@pytest.mark.usefixtures("tested")
def test_the_gate_passes_where_every_step_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The set-up, what takes seconds, the tests, what runs beside them, and their coverage."""
    monkeypatch.setattr(gate, "take", programs := Programs())
    assert gate.check([]) == 0
    told = capsys.readouterr().out
    assert told.endswith("\ncheck: all passed\n")
    assert {line.rpartition(" ")[2] for line in programs.lines} == {"--setup-only", *gate.QUICK, *gate.BESIDE}
    assert "coverage report" in told


@pytest.mark.usefixtures("tested")
@pytest.mark.parametrize("target", gate.BESIDE)
def test_a_check_beside_the_tests_that_fails_fails_the_gate(
    target: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Though all tests pass."""
    monkeypatch.setattr(gate, "take", Programs({target: 1}))
    assert gate.check([]) == 1
    assert capsys.readouterr().out.endswith(f"\ncheck: FAILED in make {target}\n")


@pytest.mark.parametrize("part", ["--setup-only", *gate.QUICK])
def test_what_takes_seconds_is_mended_first(
    part: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No test is started before."""
    monkeypatch.setattr(gate, "take", programs := Programs({part: 2}))
    monkeypatch.setattr(gate, "run_everywhere", lambda *_: pytest.fail("tests were started"))
    assert gate.check([]) == 1
    assert part in programs.lines[-1]
    assert "check: FAILED in " in capsys.readouterr().out


@pytest.mark.parametrize("change", [{"code": 1}, {"skips": {"b::test": "why"}}])
def test_a_test_that_fails_or_runs_nowhere_fails_the_gate(
    change: dict[str, Any], tested: list[Run], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And then nobody asks for coverage."""
    tested[0].skipped = change.get("skips", {})
    tested[0].step = replace(tested[0].step, code=change.get("code", 0))
    monkeypatch.setattr(gate, "take", Programs())
    assert gate.check([]) == 1
    assert "coverage report" not in capsys.readouterr().out


# --- the command line -----------------------------------------------------------------------------


def noting(called: dict[str, Any], name: str, answer: Any = None) -> Callable[..., Any]:
    """A function that writes down the last of what it is given, and gives this."""

    def note(*given: Any, **named: Any) -> Any:
        called[name] = [*given, *named.values()][-1]
        return answer

    return note


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the command line led to."""
    called: dict[str, Any] = {}
    monkeypatch.setattr(command, "check", noting(called, "check", 7))
    monkeypatch.setattr(command, "set_up_all", noting(called, "places"))
    monkeypatch.setattr(command, "other_pythons", lambda specs: [replace(HERE, folder=Path(".venv-py399"))])
    monkeypatch.setattr(command, "run_everywhere", noting(called, "wanted", []))
    monkeypatch.setattr(command, "conclude", noting(called, "complete", 0))
    monkeypatch.setattr(command, "combine_coverage", lambda _: [Step("coverage report", 2, "", 0, 0, 0)])
    return called


def main(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["tests/matrix", *words])
    return command.main()


def test_the_gate_is_called_by_its_option(called: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """With what pytest is to be told."""
    assert main(monkeypatch, "--check", "--", "-k", "one") == 7
    assert called == {"check": ["-k", "one"]}


@pytest.mark.parametrize(
    ("words", "places"),
    [
        ([], list(EVERYDAY)),
        (["--env", "legacy"], ["legacy"]),
        (["--all", "--env", "main"], ["main", "lowest", "py399"]),
    ],
)
def test_environments_are_chosen_and_made(
    words: list[str], places: list[str], called: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no more, where that is asked for."""
    assert main(monkeypatch, "--setup-only", *words) == 0
    assert [place.name for place in called.pop("places")] == places
    assert called == {}


@pytest.mark.parametrize(
    ("words", "code", "complete"),
    [([], 0, True), (["--coverage"], 2, True), (["--brief"], 0, False), (["--", "-k", "one"], 0, False)],
)
def test_only_a_whole_run_can_say_that_a_test_runs_nowhere(
    words: list[str], code: int, complete: bool, called: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its exit code is that of what failed, coverage included."""
    assert main(monkeypatch, *words) == code
    assert called["complete"] is complete
