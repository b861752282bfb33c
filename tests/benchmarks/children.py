"""Interpreters of their own, and what the kernel says of them.

A child may write compiled files, whatever this process may do: one that had to compile the package each time it starts
would be measured for the compiler.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]  # from where this package is run
PAGE: Final = resource.getpagesize()


def environment(kept: Mapping[str, str] | None = None) -> dict[str, str]:
    """Of a child; by default as this process has it."""
    return {**(os.environ if kept is None else kept), "PYTHONDONTWRITEBYTECODE": ""}


def output(program: str, *arguments: str) -> str:
    """What a program prints."""
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True, check=True).stdout


@contextmanager
def running(program: str, *arguments: str, pass_fds: Sequence[int] = ()) -> Iterator[int]:
    """A child that is terminated when the block ends; gives its process id."""
    command = [sys.executable, "-c", program, *arguments]
    with subprocess.Popen(command, cwd=ROOT, env=environment(), pass_fds=pass_fds) as child:
        try:
            yield child.pid
        finally:
            child.terminate()


def resident(process: int | str = "self") -> int:
    """Bytes of memory that a process holds now."""
    return int(Path(f"/proc/{process}/statm").read_text("utf-8").split()[1]) * PAGE


def processor_time(process: int) -> float:
    """Seconds that the main thread of a process has run."""
    return int(Path(f"/proc/{process}/schedstat").read_text("utf-8").split()[0]) / 1e9


def many_descriptors() -> None:
    """Let this process, and the children that it starts from now on, open as many files as the system lets it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
