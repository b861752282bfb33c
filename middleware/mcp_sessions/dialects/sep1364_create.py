"""SEP-1364, alternative 1: `sessions/create` begins a logical session after `initialize`.

The method's name is also the draft's. A request that gives `capabilities` or a `sessionId` in its params is
of this dialect, and so is the SEP's other spelling, `session/create`. A session that is named there is
renewed: what the client says of its capabilities is kept in place of what was kept before.
Source: SEP-1364, "Alternative 1: Add a sessions/create Endpoint".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from msgspec import Raw

from ..errors import CapabilitiesMissing
from ..jsonrpc import Kind, Message
from ..protocol import ABOUT_SESSIONS, Subject
from .draft import CREATE, DELETE
from .field import FIELD_NAME, capabilities, params, text

CREATES: Final = frozenset({CREATE, "session/create"})
DELETES: Final = frozenset({DELETE, "session/delete"})
UNREQUIRING: Final = frozenset({"initialize", "notifications/initialized", "ping"})
"""What a client may say before it has a session, where sessions are required."""


@dataclass(frozen=True, slots=True)
class SEP1364Create:
    """The dialect of SEP-1364's first alternative: `dialects=[SEP1364Create()]`.

    Args:
        required: Whether every message but `initialize`, `notifications/initialized` and `ping` must name
            a session, as clients are told in `capabilities.sessions`.
    """

    required: bool = False

    def subject(self, message: Message) -> Subject | None:
        """What a message is about, where this dialect says so."""
        if message.method in CREATES and self.speaks(message):
            return Subject.MISPLACED if message.kind is Kind.NOTIFICATION else Subject.OPEN
        if message.method in DELETES:
            return Subject.MISPLACED if message.kind is Kind.NOTIFICATION else Subject.DELETE
        return None

    @staticmethod
    def speaks(message: Message) -> bool:
        """Whether a `sessions/create` is of this dialect and not of the draft."""
        return message.method != CREATE or not {FIELD_NAME, "capabilities"}.isdisjoint(params(message))

    def named(self, message: Message) -> str | None:
        """The session that a message's params name, where this dialect has it there."""
        given = params(message) if message.method in CREATES | DELETES else {}
        return text(given[FIELD_NAME]) if FIELD_NAME in given else None

    def requires(self, message: Message, about: Subject) -> bool:
        """Whether a message must name a session."""
        freed = message.method in UNREQUIRING or about in ABOUT_SESSIONS or about is Subject.REPLY
        return self.required and not freed

    @property
    def capability(self) -> bytes:
        """`capabilities.sessions`, as JSON."""
        return b'{"required":true}' if self.required else b'{"required":false}'


def stated(message: Message) -> Raw:
    """What a client says that it can do, which it must say when it creates a session.

    Raises:
        CapabilitiesMissing: It does not.
    """
    said = capabilities(message)
    if said is None:
        raise CapabilitiesMissing
    return said
