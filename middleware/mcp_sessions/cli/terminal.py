"""What the commands read and print, and their exit codes.

Secrets and tokens come from files, the environment or standard input and never from the command line,
which every process of a machine can read and shells remember. What is printed is ASCII: what a stranger
wrote cannot steer the terminal.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ..errors import ConfigurationError

OK: Final = 0
REFUSED: Final = 1
USAGE: Final = 2
UNKNOWN: Final = 3

_MOST_BYTES: Final = 65_536  # of a file that are read


def named(source: str) -> str:
    """An argument that names where a secret is: keys, or an access token.

    Raises:
        argparse.ArgumentTypeError: It could be the secret itself.
    """
    if source.startswith(("env:", "file:")):
        return source
    raise argparse.ArgumentTypeError("name an environment variable or a file: env:NAME or file:PATH")


def text(path: str | None, *, option: str) -> str:
    """The text of a file or, with None, of standard input, less the white space around it.

    Args:
        path: The file.
        option: What named it, for the message.

    Raises:
        ConfigurationError: It cannot be read, or is not text.
    """
    try:
        return _bytes(path).decode("utf-8").strip()
    except (OSError, ValueError) as error:
        source = "standard input" if path is None else f"{option}{path}"
        raise ConfigurationError(f"{source}: {_why(error)}") from None


def _bytes(path: str | None) -> bytes:
    if path is None:
        return sys.stdin.buffer.read(_MOST_BYTES)  # not as text: its encoding is the terminal's, and may let all pass
    with Path(path).open("rb") as file:
        return file.read(_MOST_BYTES)


def _why(error: Exception) -> str:
    return str(error.strerror) if isinstance(error, OSError) else "not a file of UTF-8 text"


def show(said: Mapping[str, object]) -> None:
    """Print names and values, one a line."""
    for name, value in said.items():
        # As JSON in ASCII: control characters are escaped.
        sys.stdout.write(f"{_plain(name):<14} {_plain(value)}\n")


def _plain(value: object) -> str:
    written = json.dumps(value)
    return written[1:-1] if isinstance(value, str) else written


def refuse(reason: str) -> int:
    """Print why something is refused; the exit code that says so."""
    sys.stdout.write(f"refused        {reason}\n")
    return REFUSED
