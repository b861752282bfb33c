"""`noxfile`: the Makefile's sessions exist, and a run without tests or with a missing path fails."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from environments import require

require("nox")

TESTS = Path(__file__).resolve().parent
MAKEFILE = (TESTS.parent / "Makefile").read_text("utf-8")
ANYTHING = "def test_that_passes():\n    pass\n"


def nox(*words: str, noxfile: Path = TESTS / "noxfile.py") -> subprocess.CompletedProcess[str]:
    """Run nox as the Makefile does."""
    command = [sys.executable, "-m", "nox", "-f", str(noxfile), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """The folder of a small repository with the same noxfile, in which no path that it names exists."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "noxfile.py").write_text((TESTS / "noxfile.py").read_text("utf-8"), "utf-8")
    (tmp_path / "tests" / "test_it.py").write_text(ANYTHING, "utf-8")
    return tmp_path / "tests"


def test_the_sessions_of_the_makefile_exist() -> None:
    """Every nox session in the Makefile exists, and one runs Python 3.10."""
    asked = {name for names in re.findall(r"\(NOX\) -s ([a-z ]+)", MAKEFILE) for name in names.split()}
    sessions = json.loads(nox("--list", "--json", "-s", *asked).stdout)
    assert {session["name"] for session in sessions} == asked >= {"quick", "coverage", "lowest"}
    assert "3.10" in {session["python"] for session in sessions}


@pytest.mark.parametrize(("words", "code"), [((), 0), (("-k", "nothing"), 1)])
def test_a_run_without_a_test_fails(words: tuple[str, ...], code: int, repository: Path) -> None:
    """A session that selects no test fails, or it could lose all of its tests unnoticed."""
    run = nox("-s", "main", "--", "tests/test_it.py", *words, noxfile=repository / "noxfile.py")
    assert run.returncode == code, run.stdout + run.stderr
    assert ("1 passed" in run.stdout + run.stderr) is (code == 0)


def test_a_missing_path_fails_a_session(repository: Path) -> None:
    """A session that names a moved file fails."""
    run = nox("-s", "quick", noxfile=repository / "noxfile.py")
    assert run.returncode == 1
    assert "names what is not there: tests/client/test_real_clients.py" in run.stderr
