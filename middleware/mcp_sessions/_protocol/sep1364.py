"""The top-level `sessionId` of SEP-1364, which both of its alternatives share.

A request, a notification or an answer names its session beside `method` and `params`, and over HTTP the
header `Mcp-Session-Id` must mirror it. What is null is absent. Nothing here verifies a session, and
nothing here knows how one begins or ends. Source: SEP-1364, "Specification".

SEP-1364, alternative 1: `sessions/create` begins a logical session after `initialize`.

The method's name is also the draft's. A request that gives `capabilities` or a `sessionId` in its params is
of this dialect, and so is the SEP's other spelling, `session/create`. A session that is named there is
renewed: what the client says of its capabilities is kept in place of what was kept before.
Source: SEP-1364, "Alternative 1: Add a sessions/create Endpoint".

SEP-1364, alternative 2: `initialize` begins a session, as often as a client wants one.

Without a `sessionId` its answer names a new session; with a valid one, the same; with any other it is an
error. `terminate` ends one. A client may leave `notifications/initialized` out where the server speaks
the version that it asked for. Source: SEP-1364, "Alternative 2: Use initialize method for session creation".

The dialects that a deployment opted for, as one: what a message says in them, and where they disagree.

`_meta` goes before the top-level field, and that before the header; two that name different sessions are
refused. Nothing here verifies a session or writes an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from msgspec import Raw

from .._session.claims import BESIDE, Kind
from ..errors import ConfigurationError, SessionNotFound, refuse
from .decision import ABOUT_SESSIONS, Subject
from .draft import CREATE, DELETE, SessionMetadata
from .jsonrpc import Message, MessageKind
from .strict_json import last_members, string

FIELD_NAME: Final = "sessionId"
_NULL: Final = Raw(b"null")


def field(message: Message) -> str | None:
    """The session that a message's top-level field names, or None.

    Raises:
        Refusal: `field_not_string`: It is neither a string nor null.
    """
    return None if message.field is None else text(message.field)


def text(raw: Raw) -> str | None:
    """A `sessionId`, wherever it stands; null means none.

    Raises:
        Refusal: `field_not_string`: It is neither a string nor null.
    """
    if raw == _NULL:
        return None
    said = string(raw)
    if said is None:
        raise refuse("field_not_string")
    return said


def params(message: Message) -> Mapping[str, Raw]:
    """The members of a message's `params`; none where they are absent or null."""
    raw = last_members(message.body).get("params", _NULL)
    return {} if raw == _NULL else last_members(raw, "params_not_object")


def capabilities(message: Message) -> Raw | None:
    """What a client says that it can do: the object in a message's `params.capabilities`, or None where none stands."""
    said = params(message).get("capabilities", _NULL)
    return said if bytes(said).startswith(b"{") else None


def agreed(*said: str | None) -> str | None:
    """The one session that several places of a message name, or None where none does.

    Raises:
        Refusal: `session_field_mismatch`: They name several.
    """
    names = {name for name in said if name is not None}
    if len(names) > 1:
        raise refuse("session_field_mismatch")
    return names.pop() if names else None


def check_header(named: str, kind: Kind | None, header: str | None, *, is_ours: bool) -> None:
    """That the header says of the session what the field says.

    Args:
        named: What the field says.
        kind: What the session's token may be used as; None where it is not authentic.
        header: The header as it came, or None.
        is_ours: Whether it looks like one of ours.

    Raises:
        Refusal: `field_header_missing`: There is none.
        Refusal: `session_header_mismatch`: It says something else.
    """
    if header is None:
        raise refuse("field_header_missing")
    if not _HOLDS.get(kind, _mirrors)(named, header, is_ours):
        raise refuse("session_header_mismatch")


def _mirrors(named: str, header: str, _is_ours: bool) -> bool:
    return named == header


def _stands_beside(_named: str, _header: str, is_ours: bool) -> bool:
    """A server with transport sessions of its own needs the header for their ids, and judges them itself."""
    return not is_ours


_HOLDS: Final[Mapping[Kind | None, Callable[[str, str, bool], bool]]] = {BESIDE: _stands_beside}


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
            return Subject.MISPLACED if message.kind is MessageKind.NOTIFICATION else Subject.OPEN
        if message.method in DELETES:
            return Subject.MISPLACED if message.kind is MessageKind.NOTIFICATION else Subject.DELETE
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
        Refusal: `capabilities_missing`: It does not.
    """
    said = capabilities(message)
    if said is None:
        raise refuse("capabilities_missing")
    return said


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
        return Subject.MISPLACED if message.kind is MessageKind.NOTIFICATION else Subject.DELETE

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


Dialect = SEP1364Create | SEP1364Initialize


@dataclass(frozen=True, slots=True)
class Sep1364:
    """The dialects beside the draft and the transport header.

    Args:
        creates: SEP-1364's first alternative, or None.
        initializes: Its second, or None.
    """

    creates: SEP1364Create | None
    initializes: SEP1364Initialize | None

    @classmethod
    def of(cls, option: Any) -> Sep1364:
        """The checked form of the option `dialects=`.

        Raises:
            ConfigurationError: It is no sequence of dialects, or names one twice; the message says what to write.
        """
        if isinstance(option, Sequence) and all(isinstance(one, Dialect) for one in option):
            creates = [one for one in option if isinstance(one, SEP1364Create)]
            initializes = [one for one in option if isinstance(one, SEP1364Initialize)]
            if len(creates) <= 1 and len(initializes) <= 1:
                return cls(next(iter(creates), None), next(iter(initializes), None))
        raise ConfigurationError(
            f"dialects={option!r} must name each dialect once, as in dialects=[SEP1364Create(), SEP1364Initialize()];"
            " the draft and the transport header need no naming"
        )

    @property
    def is_sessionless(self) -> bool:
        """Whether a message that names a session in these dialects is refused for that."""
        return self.initializes is not None and self.initializes.sessionless

    def named(self, message: Message, in_meta: SessionMetadata | None) -> SessionMetadata | None:
        """The session that a message names, in `_meta` or in the ways of these dialects.

        Args:
            message: What came.
            in_meta: What the draft's metadata names, or None.

        Raises:
            Refusal: `field_not_string`: A `sessionId` is neither a string nor null.
            Refusal: `session_field_mismatch`: Two places name different sessions.
            SessionNotFound: This server uses no sessions.
        """
        said = self.said(message)
        if said is not None and self.is_sessionless:
            raise SessionNotFound("sessionless")
        if in_meta is None:
            return None if said is None else SessionMetadata(said, None)
        agreed(in_meta.session_id, said)
        return in_meta

    def said(self, message: Message) -> str | None:
        """The session that a message names in the ways of these dialects, or None.

        Raises:
            Refusal: `field_not_string`: A `sessionId` is neither a string nor null.
            Refusal: `session_field_mismatch`: Two places name different sessions.
        """
        within = [dialect.named(message) for dialect in (self.creates, self.initializes) if dialect is not None]
        return agreed(field(message), *within)

    def subject(self, message: Message) -> Subject | None:
        """What a message is about, where one of these dialects says so."""
        about = [dialect.subject(message) for dialect in (self.creates, self.initializes) if dialect is not None]
        return next(filter(None, about), None)

    def requires(self, message: Message, about: Subject) -> bool:
        """Whether a message must name a session."""
        return self.creates is not None and self.creates.requires(message, about)
