"""What the commands read and print, and their exit codes.

Secrets and tokens come from files, the environment or standard input, never from the command line, which every
process of a machine can read and shells remember. What is printed is ASCII: no stranger's text steers the terminal.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from .._errors import ConfigurationError

OK: Final = 0
REFUSED: Final = 1
USAGE: Final = 2
UNKNOWN: Final = 3

_MAX_BYTES: Final = 65_536  # that are read of a file


def secret_location(argument: str) -> str:
    """Accept an argument that names the place of a secret, and refuse one that could be the secret itself."""
    if argument.startswith(("env:", "file:")):
        return argument
    raise argparse.ArgumentTypeError("name an environment variable or a file: env:NAME or file:PATH")


def text_at(location: str, *, option: str) -> str:
    """Return the text that `env:NAME` or `file:PATH` names, or raise `ConfigurationError` if it does not exist."""
    kind, _, place = location.partition(":")
    if kind == "file":
        return text_in(place, option=f"{option} file:")
    if text := os.environ.get(place):
        return text
    raise ConfigurationError(f"{option} env:{place}: the variable {place} is not set or empty")


def text_in(path: str | None, *, option: str) -> str:
    """Return the text of a file, or with None of standard input, stripped; a `ConfigurationError` names the option."""
    source = "standard input" if path is None else f"{option}{path}"
    try:
        if path is None:  # the buffer: the terminal's own encoding may let any bytes pass
            return sys.stdin.buffer.read(_MAX_BYTES).decode("utf-8").strip()
        with Path(path).open("rb") as file:
            return file.read(_MAX_BYTES).decode("utf-8").strip()
    except OSError as error:
        raise ConfigurationError(f"{source}: {error.strerror}") from None
    except ValueError:
        raise ConfigurationError(f"{source}: not a file of UTF-8 text") from None


def show(values: Mapping[str, object]) -> None:
    """Print names and values, one a line."""
    for name, value in values.items():
        sys.stdout.write(f"{plain(name):<14} {plain(value) if isinstance(value, str) else json.dumps(value)}\n")


def plain(text: str) -> str:
    """Return a text in ASCII, its control characters escaped."""
    return json.dumps(text)[1:-1]


def refuse(reason: str) -> int:
    """Print why something is refused, and return the exit code for it."""
    sys.stdout.write(f"refused        {reason}\n")
    return REFUSED
