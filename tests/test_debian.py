"""`debian`: a missing program is installed, or its absence is said."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import debian
from debian import NotInstalled, install

INSTALLS = """echo "$@" "$(cat "$POLICY")" >> "$LOG"
[ "$1" = install ] && printf '#!/bin/sh\\n' > "$BIN/made-up" && chmod +x "$BIN/made-up"
"""
NEEDS_LISTS = """echo "$1" >> "$LOG"
[ "$1" = update ] && touch "$BIN/lists"
[ -e "$BIN/lists" ] || { echo "no such package"; exit 100; }
printf '#!/bin/sh\\n' > "$BIN/made-up"; chmod +x "$BIN/made-up"
"""
FAILS = 'echo "$1: no network"; exit 100\n'


class Machine:
    """A machine whose apt-get does as a test says."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder
        self.log = folder / "log"
        self.policy = folder / "policy"

    def apt_get(self, script: str) -> None:
        """Give it an apt-get."""
        program = self.bin / "apt-get"
        program.write_text(f"#!/bin/sh\n{script}", "utf-8")
        program.chmod(0o755)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine of root's on which nothing is installed yet."""
    made = Machine(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for name, value in {"BIN": made.bin, "LOG": made.log, "POLICY": made.policy}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(debian, "POLICY", made.policy)
    monkeypatch.setattr(debian, "LOCK", tmp_path / "lock")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return made


def test_what_is_there_is_used() -> None:
    """Nothing is installed over it."""
    assert install("coreutils", "sh").name == "sh"


def test_what_is_missing_is_installed_and_not_started(machine: Machine) -> None:
    """While the package is installed a policy forbids services; it is gone afterwards."""
    machine.apt_get(INSTALLS)
    assert install("some-package", "made-up") == machine.bin / "made-up"
    said = machine.log.read_text("utf-8")
    assert said.startswith("install --yes")
    assert "some-package #!/bin/sh\nexit 101" in said
    assert not machine.policy.exists()


def test_a_policy_of_the_machine_is_left_alone(machine: Machine) -> None:
    """Its owner had reasons."""
    machine.apt_get(INSTALLS)
    machine.policy.write_text("#!/bin/sh\nexit 0\n", "utf-8")
    install("some-package", "made-up")
    assert machine.policy.read_text("utf-8") == "#!/bin/sh\nexit 0\n"


def test_the_lists_are_fetched_where_they_are_missing(machine: Machine) -> None:
    """A fresh machine knows no package yet."""
    machine.apt_get(NEEDS_LISTS)
    install("some-package", "made-up")
    assert machine.log.read_text("utf-8").split() == ["install", "update", "install"]


def test_an_installation_that_fails_says_why(machine: Machine) -> None:
    """The error holds what apt-get said."""
    machine.apt_get(FAILS)
    with pytest.raises(NotInstalled, match=r"(?s)did not bring made-up:.*no network"):
        install("some-package", "made-up")


def test_who_is_not_root_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command stands in the error."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NotInstalled, match="apt-get install some-package"):
        install("some-package", "made-up")
