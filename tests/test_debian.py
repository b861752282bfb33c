"""`debian`: a missing program is installed, or its absence is reported.

A script replaces apt-get, since a test must not change its machine; the real one is tried with `--simulate`.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import debian
from debian import PACKAGES, NotInstalled, install

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
    """A machine whose apt-get is a script."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder
        self.log = folder / "log"
        self.policy = folder / "policy"

    def apt_get(self, script: str) -> None:
        program = self.bin / "apt-get"
        program.write_text(f"#!/bin/sh\n{script}", "utf-8")
        program.chmod(0o755)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine with root rights, on which nothing is installed yet."""
    made = Machine(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for name, value in {"BIN": made.bin, "LOG": made.log, "POLICY": made.policy}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(debian, "POLICY", made.policy)
    monkeypatch.setattr(debian, "LOCK", tmp_path / "lock")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setitem(PACKAGES, "made-up", "some-package")
    return made


@pytest.mark.skipif(shutil.which("apt-get") is None, reason="needs apt-get")
def test_the_real_apt_get_understands_every_option() -> None:
    """The options are valid, which an ordinary user can try too, since nothing is installed."""
    done = debian.apt_get("install", "--simulate")
    assert done.returncode == 0, done.stdout


def test_an_installed_program_is_used() -> None:
    """A program on the path is returned without an installation."""
    assert install("sh").name == "sh"


def test_a_missing_program_is_installed_and_not_started(machine: Machine) -> None:
    """During the installation a policy forbids services; it is removed afterwards."""
    machine.apt_get(INSTALLS)
    assert install("made-up") == machine.bin / "made-up"
    command = machine.log.read_text("utf-8")
    assert command.startswith("install --yes")
    assert "some-package #!/bin/sh\nexit 101" in command
    assert not machine.policy.exists()


def test_a_policy_of_the_machine_is_left_alone(machine: Machine) -> None:
    """An existing policy of the machine is not changed."""
    machine.apt_get(INSTALLS)
    machine.policy.write_text("#!/bin/sh\nexit 0\n", "utf-8")
    install("made-up")
    assert machine.policy.read_text("utf-8") == "#!/bin/sh\nexit 0\n"


def test_missing_package_lists_are_fetched(machine: Machine) -> None:
    """A fresh machine without package lists gets them before a second try."""
    machine.apt_get(NEEDS_LISTS)
    install("made-up")
    assert machine.log.read_text("utf-8").split() == ["install", "update", "install"]


def test_a_failed_installation_reports_why(machine: Machine) -> None:
    """The error of a failed installation holds the output of apt-get."""
    machine.apt_get(FAILS)
    with pytest.raises(NotInstalled, match=r"(?s)some-package did not bring made-up:.*no network"):
        install("made-up")


def test_an_ordinary_user_gets_the_command(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the command that root has to run."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NotInstalled, match="apt-get install some-package"):
        install("made-up")
