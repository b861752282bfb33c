"""The command that examines a server: `mcp-sessions probe URL`.

It asks the address that was typed and no other. An access token is named and not given, as everywhere on this command
line. Exit codes: 0 everything holds, 1 something does not, 2 the command cannot be carried out as given, 3 the server
did not answer, or not to the end.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from . import terminal
from .errors import ConfigurationError


def add_command(commands: Any) -> None:
    """Add `probe` to a parser's commands."""
    command: argparse.ArgumentParser = commands.add_parser("probe", help="examine the sessions of any MCP server")
    command.add_argument("url", metavar="URL", help="of the MCP endpoint, as in https://host.example/mcp")
    command.add_argument("--token", type=terminal.named, metavar="env:NAME|file:PATH", help="an access token for it")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.add_argument("--seconds", type=_positive, default=60, help="that all of it may take (60)")
    command.add_argument("--requests", type=_positive, default=200, help="that may be sent (200)")
    command.set_defaults(command=_probe)


def _positive(text: str) -> int:
    if text.isascii() and text.isdigit() and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError("a whole number above 0")


def _probe(given: argparse.Namespace) -> int:
    from .probe import Wire, probe  # what nobody else of the command line needs

    wire = Wire(given.url, bearer=_token(given.token), requests=given.requests, seconds=given.seconds)
    report = probe(wire)
    sys.stdout.write(f"{report.as_json()}\n" if given.json else report.as_text())
    if report.stopped is not None:
        return terminal.UNKNOWN
    return terminal.OK if report.holds else terminal.REFUSED


def _token(source: str | None) -> str | None:
    """The access token.

    Raises:
        ConfigurationError: There is none where it was said to be, or it cannot stand in a header.
    """
    if source is None:
        return None
    kind, _, place = source.partition(":")
    token = os.environ.get(place, "").strip() if kind == "env" else terminal.text(place, option="--token file:")
    if token and token.isascii() and token.isprintable() and " " not in token:
        return token
    raise ConfigurationError(f"--token {source} holds no access token")
