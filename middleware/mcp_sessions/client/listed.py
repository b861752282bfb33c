"""What a server shows of a principal's sessions: public names and times, and never an id.

A list is read and not believed: nothing here changes what is held.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec


class ListedSession(msgspec.Struct, frozen=True, rename="camel"):
    """One session of the caller, as the server knows it.

    Args:
        ref: Its public name. No credential.
        created_at: When it was created.
        last_seen_at: When it was last used; it may lag by a minute.
        expires_at: When it ends by itself.
        root: The session at the top of its lineage, by its public name, or None where it is no fork.
        current: Whether it is the session that the request was made in.
    """

    ref: str
    created_at: datetime
    last_seen_at: datetime
    expires_at: datetime
    root: str | None = None
    current: bool = False


class SessionPage(msgspec.Struct, frozen=True, rename="camel"):
    """Some of the caller's sessions, oldest first.

    Args:
        sessions: The sessions.
        next_cursor: Where the next page begins, or None where this is the last.
    """

    sessions: list[ListedSession]
    next_cursor: str | None = None


def page(result: dict[str, Any]) -> SessionPage:
    """The page in the result of `sessions/list`.

    Raises:
        msgspec.ValidationError: There is none.
    """
    return msgspec.convert(result, SessionPage)
