"""`debian`: a missing program is installed, or its absence is reported.

What installs is replaced by a script, since a test must not change the machine that it runs on; that the real apt-get
understands what it is asked is tried with `--simulate`.
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
    monkeypatch.setitem(PACKAGES, "made-up", "some-package")
    return made


@pytest.mark.skipif(shutil.which("apt-get") is None, reason="needs apt-get")
def test_the_real_apt_get_understands_every_option() -> None:
    """Also for an ordinary user, since nothing is installed; the packages are tried by the tests that need them."""
    done = debian.apt_get("install", "--simulate")
    assert done.returncode == 0, done.stdout


def test_what_is_there_is_used() -> None:
    """Nothing is installed over it."""
    assert install("sh").name == "sh"


def test_what_is_missing_is_installed_and_not_started(machine: Machine) -> None:
    """While the package is installed a policy forbids services; it is gone afterwards."""
    machine.apt_get(INSTALLS)
    assert install("made-up") == machine.bin / "made-up"
    command = machine.log.read_text("utf-8")
    assert command.startswith("install --yes")
    assert "some-package #!/bin/sh\nexit 101" in command
    assert not machine.policy.exists()


def test_a_policy_of_the_machine_is_left_alone(machine: Machine) -> None:
    """Its owner had reasons."""
    machine.apt_get(INSTALLS)
    machine.policy.write_text("#!/bin/sh\nexit 0\n", "utf-8")
    install("made-up")
    assert machine.policy.read_text("utf-8") == "#!/bin/sh\nexit 0\n"


def test_the_lists_are_fetched_where_they_are_missing(machine: Machine) -> None:
    """A fresh machine knows no package yet."""
    machine.apt_get(NEEDS_LISTS)
    install("made-up")
    assert machine.log.read_text("utf-8").split() == ["install", "update", "install"]


def test_an_installation_that_fails_says_why(machine: Machine) -> None:
    """The error holds the output of apt-get."""
    machine.apt_get(FAILS)
    with pytest.raises(NotInstalled, match=r"(?s)some-package did not bring made-up:.*no network"):
        install("made-up")


def test_anyone_but_root_gets_the_command(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is the remedy."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NotInstalled, match="apt-get install some-package"):
        install("made-up")
