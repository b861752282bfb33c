"""The commands that list and end sessions in the servers' store.

They take no session id: a session is named by its `ref`, as in logs and traces, and a principal as the servers see
it. A store's address may hold a password; one that does is named, not given.
"""

from __future__ import annotations

import argparse
import getpass
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import anyio

from .._errors import ConfigurationError
from .._server.operator import Sessions
from .._session.claims import AUDIENCE, Principal, utc
from . import terminal

_Command = Callable[[argparse.Namespace], Awaitable[int]]

_NOT_FOUND: Final = "no live session of this name is recorded; servers record sessions with tracked=True"
_UNRECORDED: Final = (
    "no session of this principal is recorded, as by servers without tracked=True; nothing has ended if the servers "
    "use another audience or other keys"
)
_EVERYONE: Final = "--before ends everyone's sessions: leave out the principal, or leave out --before"
_WHOSE: Final = "name the principal as the servers see it: --subject and, to narrow it, --client-id and --issuer"


def add_commands(commands: Any) -> None:
    listing = _add(commands, "list", "show recorded sessions: a principal's, or all", _list)
    listing.add_argument("--count", action="store_true", help="print only their number")
    ending = _add(commands, "end", "end one recorded session, by its public name", _end)
    ending.add_argument("--ref", required=True, metavar="ses_...", help="as logs and traces show it")
    ending.add_argument("--reason", default="ended", help="the reason that the servers' on_end gets (ended)")
    ending_all = _add(commands, "end-all", "end all sessions of a principal, or all before a time", _end_all)
    ending_all.add_argument("--before", type=_moment, metavar="ISO8601", help="all that were created before this time")
    for command in (ending, ending_all):
        command.add_argument("--by", default=_user(), metavar="NAME", help="who ends it, for the servers' logs (you)")
    for command in (listing, ending_all):
        command.add_argument("--keys", type=terminal.secret_location, action="append", metavar="env:NAME|file:PATH")
        for name in ("--client-id", "--issuer", "--subject"):
            command.add_argument(name, help="of the principal; any if left out")


def _add(commands: Any, name: str, purpose: str, command: _Command) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=purpose)
    parser.add_argument("--store", type=_address, required=True, metavar="URL|env:NAME|file:PATH")
    parser.add_argument("--audience", default=AUDIENCE, help=f"the servers' ({AUDIENCE})")
    parser.set_defaults(command=lambda arguments: anyio.run(command, arguments), keys=None)
    return parser


def _address(store: str) -> str:
    # A password stands before an @ or, in some dialects, in the query. Neither is repeated here.
    if store.startswith(("env:", "file:", "sqlite:")) or not ("@" in store or "?" in store):
        return store
    raise argparse.ArgumentTypeError("a URL with a password or options is a secret: name env:NAME or file:PATH")


def _user() -> str | None:
    """Return the name of the user who runs the command, or None if the system does not know it."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's uid without a name
        return None


def _moment(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00"))  # Python 3.10 reads no Z
    except ValueError:
        raise argparse.ArgumentTypeError("not an ISO 8601 time, as in 2026-07-28T12:00:00Z") from None


async def _list(arguments: argparse.Namespace) -> int:
    principal = _principal(arguments)
    found = None if principal == Principal() else principal
    async with _sessions(arguments) as sessions:
        if arguments.count:
            number = await sessions.count() if found is None else len(await sessions.of(found))
            terminal.show({"sessions": number})
            return terminal.OK
        async for record in sessions.each(found):
            times = (utc(at).isoformat() for at in (record.created_at, record.seen_at, record.expires_at))
            sys.stdout.write("{}  created {}  seen {}  expires {}\n".format(record.ref, *times))
    return terminal.OK


async def _end(arguments: argparse.Namespace) -> int:
    async with _sessions(arguments) as sessions:
        if not await sessions.end(arguments.ref, reason=arguments.reason, by=arguments.by):
            return terminal.refuse(_NOT_FOUND)
    terminal.show({"ended": arguments.ref})
    return terminal.OK


async def _end_all(arguments: argparse.Namespace) -> int:
    before: datetime | None = arguments.before
    principal = _principal(arguments)
    if (before is None) is (principal == Principal()):
        raise ConfigurationError(_WHOSE if before is None else _EVERYONE)
    async with _sessions(arguments) as sessions:
        if before is not None:
            await sessions.end_all_before(before)
            terminal.show({"ended": f"everyone's sessions created before {before.isoformat()}"})
            return terminal.OK
        moment, recorded = await sessions.end_all(principal, by=arguments.by)
    which = f"the principal's sessions created before {moment.isoformat()}"
    where = f"in the audience {arguments.audience} and under these keys"
    outcome = {"ended": which} if recorded else {"from now on": f"every worker refuses {which}, {where}"}
    terminal.show({**outcome, "recorded": recorded, **({} if recorded else {"note": _UNRECORDED})})
    return terminal.OK


def _principal(arguments: argparse.Namespace) -> Principal:
    return Principal(client_id=arguments.client_id, issuer=arguments.issuer, subject=arguments.subject)


def _sessions(arguments: argparse.Namespace) -> Sessions:
    url: str = arguments.store
    if url.startswith(("env:", "file:")):
        url = terminal.text_at(url, option="--store")
    if url.startswith("sqlite:") and not Path(url.removeprefix("sqlite:")).exists():
        raise ConfigurationError("--store names an SQLite file that does not exist; give it as the servers have it")
    return Sessions(store=url, keys=arguments.keys, audience=arguments.audience, clock=time.time)
