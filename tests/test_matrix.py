"""The lanes leave no test out, pip's settings reach uv, and what no environment runs is found."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from matrix.environments import ROOT, Environment, find_python, lower_bounds, other_pythons, own_environment
from matrix.lanes import BRIEF, FRAMEWORKS, FULL, PROOFS, Lanes, lanes_of
from matrix.pipsettings import OnlyPip, uv_variables
from matrix.records import Run, read_record
from matrix.steps import Step, take
from matrix.telling import conclude, show_times

MAIN, LEGACY = own_environment("main"), own_environment("legacy")


# --- pip's settings -------------------------------------------------------------------------------


def test_uv_is_told_what_pip_was_told() -> None:
    """Indexes, folders, certificates and proxies go over; what is set nearest wins, as in pip."""
    listing = """\
:env:.cert='/etc/ours.pem'
:env:.default-timeout='180'
:env:.disable-pip-version-check='1'
global.cert='/etc/theirs.pem'
global.extra-index-url='\\nhttps://one.example/simple\\nfile:///srv/two'
global.index-url='https://index.example/simple'
install.find-links='/srv/wheels https://wheels.example'
install.proxy='http://proxy.example:3128'
wheel.no-deps='yes'
"""
    assert uv_variables(listing) == {
        "HTTPS_PROXY": "http://proxy.example:3128",
        "HTTP_PROXY": "http://proxy.example:3128",
        "SSL_CERT_FILE": "/etc/ours.pem",
        "UV_DEFAULT_INDEX": "https://index.example/simple",
        "UV_FIND_LINKS": "/srv/wheels,https://wheels.example",
        "UV_HTTP_TIMEOUT": "180",
        "UV_INDEX": "https://one.example/simple file:///srv/two",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
    }


def test_a_setting_that_uv_has_not_is_left_to_pip() -> None:
    """Nothing is installed otherwise than its user has asked for."""
    with pytest.raises(OnlyPip, match="only-binary"):
        uv_variables("install.only-binary=':all:'")


# --- lanes ----------------------------------------------------------------------------------------


def collected(arguments: list[str]) -> list[Path]:
    """The test files that pytest finds when it is told this."""
    ignored = [ROOT / one.removeprefix("--ignore=") for one in arguments if one.startswith("--ignore=")]
    named = [ROOT / one for one in arguments if not one.startswith("-")]
    files = [file for path in named for file in (path.rglob("test_*.py") if path.is_dir() else [path])]
    return [file for file in files if not any(file.is_relative_to(path) for path in ignored)]


def every_test_file() -> set[Path]:
    return set((ROOT / "tests").rglob("test_*.py"))


@pytest.mark.parametrize("environment", [MAIN, LEGACY], ids=["main", "legacy"])
def test_every_test_is_in_one_lane(environment: Environment) -> None:
    """Side by side the lanes run everything once, in each environment if everything is asked for."""
    lanes = lanes_of(environment, everything=True, brief=False)
    files = Counter(file for arguments in lanes.values() for file in collected(arguments))
    assert set(files) == every_test_file()
    assert set(files.values()) == {1}


def test_every_day_the_older_environment_runs_what_meets_a_framework() -> None:
    """Nothing twice there either."""
    lanes = lanes_of(LEGACY, everything=False, brief=False)
    files = Counter(file for arguments in lanes.values() for file in collected(arguments))
    assert ROOT / "tests" / "integration" / "test_draft.py" in files
    assert ROOT / "tests" / "test_jsonrpc.py" not in files
    assert set(files.values()) == {1}


def test_the_brief_lanes_leave_out_the_proofs_and_nothing_else() -> None:
    """What `make test` does not run is what is said to take minutes."""
    files = Counter(file for told in lanes_of(MAIN, everything=False, brief=True).values() for file in collected(told))
    assert every_test_file() - set(files) == set(collected(list(PROOFS)))
    assert set(files.values()) == {1}


@pytest.mark.parametrize(
    "lanes", [FULL, FRAMEWORKS, BRIEF, {"": PROOFS}], ids=["full", "frameworks", "brief", "proofs"]
)
def test_what_a_lane_names_is_there(lanes: Lanes) -> None:
    """A file that was moved is no silent hole."""
    assert [path for paths in lanes.values() for path in paths if not (ROOT / path).exists()] == []


# --- environments ---------------------------------------------------------------------------------


def test_the_lowest_environment_holds_the_oldest_versions_that_are_promised() -> None:
    """Each dependency of the package is fixed at its lower bound; what else is needed is the legacy environment's."""
    bounds = lower_bounds()
    assert any(bound.startswith("anyio==4.") for bound in bounds)
    assert own_environment("lowest").requirements == (*LEGACY.requirements, *bounds)


def test_an_environment_is_stale_when_what_belongs_into_it_changes() -> None:
    """Its fingerprint hangs on the Python and on what is to be installed."""
    assert (MAIN.name, LEGACY.name) == ("main", "legacy")
    assert MAIN.fingerprint != LEGACY.fingerprint
    assert MAIN.fingerprint != replace(MAIN, version="3.99.0").fingerprint
    assert MAIN.fingerprint == own_environment("main").fingerprint


def test_pythons_are_found_where_they_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the path or among pyenv's; one that does not start, or is another version, is none."""
    good, other = (12, 13) if sys.version_info.minor == 13 else (13, 12)  # the one that runs this is looked for nowhere
    programs = {"python3.10": "exit 1", f"python3.{other}": "echo 3.11.0", f"python3.{good}": f"echo 3.{good}.9"}
    for name, program in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{program}\n", "utf-8")
        (tmp_path / name).chmod(0o755)
    kept = tmp_path / "versions" / "3.14.2" / "bin" / "python"
    kept.parent.mkdir(parents=True)
    kept.write_text("no program", "utf-8")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert [find_python(minor) for minor in (10, other, 14)] == [None, None, None]
    assert find_python(good) == (tmp_path / f"python3.{good}", f"3.{good}.9")
    others = other_pythons(["main", "legacy"])
    assert {other.folder.name for other in others} >= {f".venv-py3{good}", f".venv-py3{good}-legacy"}
    assert "python3.14: not found on this machine, so not tested" in capsys.readouterr().out


# --- runs -----------------------------------------------------------------------------------------

RECORD = """\
<testsuites><testsuite>
  <testcase classname="tests.test_a" name="test_passes"/>
  <testcase classname="tests.test_a" name="test_fails"><failure message="no"/></testcase>
  <testcase classname="tests.test_a" name="test_breaks"><error message="no"/></testcase>
  <testcase classname="tests.test_a" name="test_waits"><skipped message="needs mcp&gt;=2"/></testcase>
  <testcase classname="tests.test_a" name="test_table[NOTSET]"><skipped message="got empty parameter set"/></testcase>
  <testcase classname="" name="tests.test_b"><skipped message="collection">('f', 1, 'Skipped: it')</skipped></testcase>
</testsuite></testsuites>
"""


def step(name: str = "main rest", code: int = 0) -> Step:
    return Step(name, code, "", 61.0, 90.4, 25.0)


def test_the_record_says_what_became_of_each_test(tmp_path: Path) -> None:
    """Passed, failed, or skipped with its reason, be it one test or a whole file."""
    (tmp_path / "record.xml").write_text(RECORD, "utf-8")
    run = read_record(MAIN, step(), tmp_path / "record.xml")
    assert run.passed == {"tests.test_a::test_passes"}
    assert run.failed == {"tests.test_a::test_fails", "tests.test_a::test_breaks"}
    assert run.skipped == {
        "tests.test_a::test_waits": "needs mcp>=2",
        "tests.test_a::test_table[NOTSET]": "got empty parameter set",
        "tests.test_b": "it",
    }
    assert read_record(MAIN, step(), tmp_path / "none.xml") == Run(MAIN, step())


def test_a_test_that_runs_nowhere_fails_the_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """What is skipped in one environment has to run in another: the same test, file or table."""
    skips = {"a::test": "why", "b": "why", "c::test[NOTSET]": "why"}
    here = Run(own_here(), step(), passed={"d::test"}, skipped=skips)
    there = Run(own_here(), step("legacy rest"), passed={"a::test", "b::test_one", "c::test[case]"})
    assert conclude([here, there], complete=True) == 0
    assert conclude([here], complete=False) == 0
    capsys.readouterr()
    assert conclude([here], complete=True) == 1
    told = capsys.readouterr().out
    assert "\ntests: 1 passed, 0 failed, 3 skipped\n" in told
    assert "skipped in main rest, why:\n    a::test\n    b\n    c::test[NOTSET]\n" in told
    assert told.endswith("FAILED: skipped in every environment:\n    a::test\n    b\n    c::test[NOTSET]\n")


def own_here() -> Environment:
    """The environment in which this test runs."""
    return replace(MAIN, folder=Path(sys.prefix))


def test_a_run_that_failed_fails_the_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever its record says."""
    assert conclude([Run(own_here(), step(code=1))], complete=True) == 1
    assert capsys.readouterr().out.endswith("FAILED in: main rest\n")


def test_a_step_knows_what_it_printed_and_what_it_cost() -> None:
    """Both streams, the exit code, and the processor time of what it started, too."""
    inner = "import time; start = time.process_time()\nwhile time.process_time() < start + 0.1: pass"
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}]); sys.exit('that is all')"
    taken = take("a step", [sys.executable, "-c", program])
    assert (taken.code, taken.output) == (1, "that is all")
    assert taken.processor >= 0.1
    assert taken.ended >= taken.began


def test_the_table_of_times_is_in_order_and_ends_with_the_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """Minutes and seconds: from when, to when, how long, and how much processor time."""
    show_times([step("later"), replace(step("first"), began=0.2, ended=0.9, processor=0.5)])
    heading, first, later, whole = capsys.readouterr().out.split("\n")[1:5]
    assert heading.split() == ["step", "from", "to", "took", "processor"]
    assert first.split() == ["first", "0:00", "0:01", "0:01", "0:00"]
    assert later.split() == ["later", "1:01", "1:30", "0:29", "0:25"]
    assert whole.split()[::4] == ["all", "0:26"]
