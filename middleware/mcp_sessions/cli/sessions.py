"""The commands that list and end sessions in the servers' store.

They hold no session id: a session is named as logs and traces name it, and a principal as the servers
see it. The store's address may hold a password, so where it does it is named and not given.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import anyio

from .._server.operator import Sessions
from .._session.claims import AUDIENCE, Principal, utc
from ..errors import ConfigurationError
from ..stores.base import Record
from . import terminal

Deed = Callable[[Sessions], Awaitable[int]]

_NOBODY: Final = "no such session is recorded and alive; the servers record sessions with tracked=True"
_WHOM: Final = "say whose sessions, as the servers see the principal: --client-id, --issuer and --subject, those it has"


def add_commands(commands: Any) -> None:
    """Add `list`, `end` and `end-all` to a parser's commands."""
    listing = _command(commands, "list", "show a principal's sessions, where they are recorded", _list)
    ending = _command(commands, "end", "end one recorded session, by its public name", _end)
    ending.add_argument("--ref", required=True, metavar="ses_...", help="as logs and traces show it")
    ending.add_argument("--reason", default="ended", help="what the servers' on_end is told (ended)")
    ending_all = _command(commands, "end-all", "end all sessions of a principal, or all before a time", _end_all)
    ending_all.add_argument("--before", type=_moment, metavar="ISO8601", help="those of everybody, created before then")
    for command in (listing, ending_all):
        command.add_argument("--keys", type=terminal.named, action="append", metavar="env:NAME|file:PATH")
        for name in ("--client-id", "--issuer", "--subject"):
            command.add_argument(name, help="of the principal")


def _command(commands: Any, name: str, purpose: str, deed: Callable[..., int]) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(name, help=purpose)
    command.add_argument("--store", type=_address, required=True, metavar="URL|env:NAME|file:PATH")
    command.add_argument("--audience", default=AUDIENCE, help=f"the servers' ({AUDIENCE})")
    command.set_defaults(command=deed, keys=None)
    return command


def _address(store: str) -> str:
    # A password stands before an @ or, in some dialects, in the query. Neither is repeated here.
    if store.startswith(("env:", "file:", "sqlite:")) or not ("@" in store or "?" in store):
        return store
    raise argparse.ArgumentTypeError("a URL with a password or options is not given here: name env:NAME or file:PATH")


def _moment(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00"))  # Python 3.10 reads no Z
    except ValueError:
        raise argparse.ArgumentTypeError("not an ISO 8601 time, as in 2026-07-28T12:00:00Z") from None


def _list(given: argparse.Namespace) -> int:
    principal = _principal(given)

    async def show(sessions: Sessions) -> int:
        for record in await sessions.of(principal):
            sys.stdout.write(_line(record))
        return terminal.OK

    return _do(given, show)


def _line(record: Record) -> str:
    times = (("created", record.created_at), ("seen", record.seen_at), ("expires", record.expires_at))
    return "  ".join((record.ref, *(f"{name} {utc(moment).isoformat()}" for name, moment in times))) + "\n"


def _end(given: argparse.Namespace) -> int:
    async def end(sessions: Sessions) -> int:
        if not await sessions.end(given.ref, reason=given.reason):
            return terminal.refuse(_NOBODY)
        terminal.show({"ended": given.ref})
        return terminal.OK

    return _do(given, end)


def _end_all(given: argparse.Namespace) -> int:
    if given.before is None:
        return _do(given, _all_of(_principal(given)))
    if (given.client_id, given.issuer, given.subject) != (None, None, None):
        raise ConfigurationError("--before ends everybody's sessions: leave out the principal, or leave out --before")
    return _do(given, _all_before(given.before))


def _all_of(principal: Principal) -> Deed:
    async def end(sessions: Sessions) -> int:
        moment = await sessions.end_all(principal)
        terminal.show({"ended": f"the principal's sessions created before {moment.isoformat()}"})
        return terminal.OK

    return end


def _all_before(moment: datetime) -> Deed:
    async def end(sessions: Sessions) -> int:
        await sessions.end_all_before(moment)
        terminal.show({"ended": f"everybody's sessions created before {moment.isoformat()}"})
        return terminal.OK

    return end


def _principal(given: argparse.Namespace) -> Principal:
    principal = Principal(client_id=given.client_id, issuer=given.issuer, subject=given.subject)
    if principal == Principal():
        raise ConfigurationError(_WHOM)
    return principal


def _do(given: argparse.Namespace, deed: Deed) -> int:
    async def do() -> int:
        store = _store(given.store)
        async with Sessions(store=store, keys=given.keys, audience=given.audience, clock=time.time) as sessions:
            return await deed(sessions)

    return anyio.run(do)


def _store(address: str) -> str:
    """The URL that an argument gives or names.

    Raises:
        ConfigurationError: It names none, or a file that no server has made.
    """
    url = _url(address)
    if url.startswith("sqlite:") and not Path(url.removeprefix("sqlite:")).exists():
        raise ConfigurationError("--store names an SQLite file that does not exist; give it as the servers have it")
    return url


def _url(address: str) -> str:
    if address.startswith("file:"):
        return terminal.text(address.removeprefix("file:"), option="--store file:")
    if not address.startswith("env:"):
        return address
    name = address.removeprefix("env:")
    if url := os.environ.get(name):
        return url
    raise ConfigurationError(f"--store env:{name}: the variable {name} is not set or empty")
