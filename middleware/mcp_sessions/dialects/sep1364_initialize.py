"""SEP-1364, alternative 2: `initialize` begins a session, as often as a client wants one.

Without a `sessionId` its answer names a new session; with a valid one, the same; with any other it is an
error. `terminate` ends one. A client may leave `notifications/initialized` out where the server speaks
the version that it asked for. Source: SEP-1364, "Alternative 2: Use initialize method for session creation".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..jsonrpc import Kind, Message
from ..members import last_members, string
from ..protocol import Subject
from .field import FIELD_NAME, params, text

TERMINATE: Final = "terminate"


@dataclass(frozen=True, slots=True)
class SEP1364Initialize:
    """The dialect of SEP-1364's second alternative: `dialects=[SEP1364Initialize()]`.

    Args:
        sessionless: Whether this server uses no sessions: `initialize` names none, and a client that
            sends one gets an error.
    """

    sessionless: bool = False

    def subject(self, message: Message) -> Subject | None:
        """What a message is about, where this dialect says so."""
        if message.method != TERMINATE:
            return None
        return Subject.MISPLACED if message.kind is Kind.NOTIFICATION else Subject.DELETE

    def named(self, message: Message) -> str | None:
        """The session that a message's params name, where this dialect has it there."""
        given = params(message) if message.method == TERMINATE else {}
        return text(given[FIELD_NAME]) if FIELD_NAME in given else None


def agrees_on_version(message: Message, answer: bytes) -> bool:
    """Whether a server speaks the version that a client asked for, so that the client need not confirm it.

    Args:
        message: The `initialize`.
        answer: Its successful answer.
    """
    asked = params(message).get("protocolVersion")
    spoken = last_members(last_members(answer)["result"]).get("protocolVersion")
    return asked is not None and spoken is not None and string(asked) == string(spoken)
