"""The recorded sessions of one principal, for that principal: shown page by page, and ended all at once.

Sessions are told by their public names. No id is shown, since an id is a credential and whoever reads a list need not
be who holds the session. Nothing here judges who asks.
"""

from __future__ import annotations

import re
from typing import Any, Final

from .dialects.draft import instant
from .endings import ENDED_ALL
from .errors import CursorUnknown, StoreUnavailable
from .keys import base64url, from_base64url
from .options import Options
from .session import Principal
from .stores.base import Record
from .stores.rules import idle_at

PAGE: Final = 100  # sessions
ROUNDS: Final = 10  # of looking for sessions that were made while others ended
_PLACE: Final = re.compile(r"([0-9]{1,15}) ([!-~]{1,64})", re.ASCII)

Place = tuple[int, str]
"""Where a session stands on the list: oldest first, and then by name."""


async def page(options: Options, principal: Principal, cursor: object, *, own: str | None) -> dict[str, Any]:
    """One page of a principal's sessions, oldest first, as `sessions/list` answers.

    Args:
        options: The deployment's.
        principal: Whose sessions.
        cursor: The `nextCursor` of the page before, as the client sent it, or None for the first page.
        own: The session that the request carries, by its `ref`, or None.

    Raises:
        CursorUnknown: It is none.
        StoreUnavailable: The store did not answer.
    """
    after = (-1, "") if cursor is None else _place_at(cursor)
    alive = (record for record in await _records(options, principal) if _is_used(record, options))
    left = sorted((record for record in alive if _place(record) > after), key=_place)
    shown = left[:PAGE]
    more = {"nextCursor": _cursor(shown[-1])} if len(left) > PAGE else {}
    return {"sessions": [_shown(record, own) for record in shown], **more}


async def end_all(options: Options, principal: Principal) -> None:
    """End a principal's sessions. Their `on_end` is run by one of the servers, soon.

    Raises:
        StoreUnavailable: The store did not take it, or new ones keep coming. Some sessions may live.
    """
    for _ in range(ROUNDS):
        records = await _records(options, principal)
        if not records:
            return
        await options.endings.revoke(records, ENDED_ALL)
    raise StoreUnavailable("sessions_keep_coming")


async def _records(options: Options, principal: Principal) -> list[Record]:
    subjects = options.ring(options.clock()).subjects(principal)
    return [
        record for subject in subjects for record in await options.store.sessions(subject, audience=options.audience)
    ]


def _is_used(record: Record, options: Options) -> bool:
    """Whether a session would not be refused as idle: its record stays until somebody looks for such."""
    idle_timeout = None if options.idle_timeout is None else int(options.idle_timeout)
    return options.clock() < idle_at(record.seen_at, idle_timeout)


def _shown(record: Record, own: str | None) -> dict[str, Any]:
    shown = {
        "ref": record.ref,
        "createdAt": instant(record.created_at),
        "lastSeenAt": instant(record.seen_at),
        "expiresAt": instant(record.expires_at),
    }
    root = {} if record.root is None else {"root": record.root}
    return {**shown, **root, "current": True} if record.ref == own else {**shown, **root}


def _place(record: Record) -> Place:
    return record.created_at, record.ref


def _cursor(record: Record) -> str:
    return base64url(f"{record.created_at} {record.ref}".encode())


def _place_at(cursor: object) -> Place:
    """A place in the caller's own list, and so nothing that would have to be kept from changing."""
    try:
        found = _PLACE.fullmatch(from_base64url(cursor).decode("ascii")) if isinstance(cursor, str) else None
    except ValueError:
        found = None
    if found is None:
        raise CursorUnknown
    return int(found[1]), found[2]
