"""Starting a program, and knowing afterwards what it printed, when it ran and what it cost."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matrix.environments import ROOT

STARTED = time.monotonic()


@dataclass(frozen=True)
class Step:
    """A program that has ended.

    Attributes:
        name: What the tables call it.
        code: Its exit code.
        output: What it printed.
        began: When it was started, in seconds since this program was.
        ended: When it had ended, in the same seconds.
        processor: The seconds of processor time that it took, with all that it started.
    """

    name: str
    code: int
    output: str
    began: float
    ended: float
    processor: float


def take(name: str, command: Sequence[str | Path], variables: dict[str, str] | None = None) -> Step:
    """Run a program in the repository's folder to its end, with these variables in place of the environment."""
    began = now()
    # A file takes the output, as a program that is left running would hold a pipe open.
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as printed:
        running = subprocess.Popen(command, cwd=ROOT, env=variables, stdout=printed, stderr=subprocess.STDOUT)
        _, status, used = os.wait4(running.pid, 0)
        running.returncode = os.waitstatus_to_exitcode(status)
        printed.seek(0)
        output = printed.read()
    return Step(name, running.returncode, output.rstrip(), began, now(), used.ru_utime + used.ru_stime)


def now() -> float:
    """Seconds since this program was started."""
    return time.monotonic() - STARTED
