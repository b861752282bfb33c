"""What a message can be about, as decisions and dialects distinguish it."""

from __future__ import annotations

from enum import Enum
from typing import Final


class Subject(str, Enum):
    """What a message is about."""

    CREATE = "sessions/create"
    DELETE = "sessions/delete"
    FORK = "sessions/fork"
    LIST_SESSIONS = "sessions/list"
    TERMINATE = "SEP-1364's terminate"
    CREATE_SEP1364 = "SEP-1364's create, which may name a session to renew"
    MISPLACED = "one of the above without an id"
    LIST = "a list"
    REPLY = "a posted response"
    OTHER = "anything else"


ABOUT_SESSIONS: Final = frozenset(Subject) - {Subject.LIST, Subject.REPLY, Subject.OTHER}
"""What concerns the session that the message names, whatever the header names."""
