"""Interpreters of their own.

A child may write compiled files, whatever this process may do: one that had to compile the package each time it starts
would be measured for the compiler.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[3]  # from where this package is run


def environment(kept: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment of a child; by default this process's."""
    return {**kept, "PYTHONDONTWRITEBYTECODE": ""}


def output(program: str, *arguments: str) -> str:
    """Return what a program prints."""
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True, check=True).stdout
