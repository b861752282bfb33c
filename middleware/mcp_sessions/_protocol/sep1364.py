"""Both alternatives of SEP-1364, "Specification": a top-level `sessionId`, mirrored in the header `Mcp-Session-Id`.

By alternative 1 `sessions/create` begins a session or renews its client's capabilities; it is of this dialect and not
of the draft where it gives `capabilities` or a `sessionId`. By alternative 2 `initialize` begins a session or goes on
with one, and `terminate` ends it. What is null is absent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec import Raw

from .._errors import ConfigurationError, SessionNotFound
from .._refusals import refusal
from .._session.claims import COEXISTING, Kind
from . import rewrite
from .draft import ABOUT_SESSIONS, CREATE, DELETE, INITIALIZE, SessionMetadata, Subject, speaks_draft
from .jsonrpc import NOTIFICATION, REQUEST, Message
from .strict_json import NULL, join, last_members, string

FIELD_NAME: Final = "sessionId"
TERMINATE: Final = "terminate"
_CREATES: Final = frozenset({CREATE, "session/create"})
_OWN: Final = frozenset({FIELD_NAME, "capabilities"})  # params of which the draft's `sessions/create` has none
_DELETES: Final = frozenset({DELETE, "session/delete"})
_NEVER_REQUIRING: Final = frozenset({INITIALIZE, "notifications/initialized", "ping"})
"""What a client may send before it has a session, where sessions are required."""


def field(message: Message) -> str | None:
    """Return the session that a message's top-level field names, or None."""
    return None if message.field is None else _text(message.field)


def _text(raw: Raw) -> str | None:
    if raw == NULL:
        return None
    value = string(raw)
    if value is None:
        raise refusal("field_not_string")
    return value


def capabilities(message: Message) -> Raw | None:
    """Return the object in a message's `params.capabilities`, or None where there is none."""
    value = message.all_params.get("capabilities", NULL)
    return value if bytes(value).startswith(b"{") else None


def required_capabilities(message: Message) -> Raw:
    """Return the capabilities that a client must state when it creates a session."""
    value = capabilities(message)
    if value is None:
        raise refusal("capabilities_missing")
    return value


def agreed(*ids: str | None) -> str | None:
    """Return the one session that several places of a message name, or None where none does; refuse several."""
    names = {name for name in ids if name is not None}
    if len(names) > 1:
        raise refusal("session_field_mismatch")
    return names.pop() if names else None


def mirrors(named: str, kind: Kind | None, header: str | None, *, is_ours: bool) -> bool:
    """Whether the header, which may look like one of ours and must be there, names the session of the field.

    A session of the kind `beside` leaves the header to the wrapped server's own transport sessions.
    """
    if header is None:
        raise refusal("field_header_missing")
    return not is_ours if kind == COEXISTING else named == header


def agrees_on_version(message: Message, answer: bytes) -> bool:
    """Whether the successful answer to an `initialize` has the version that the client asked for."""
    asked = message.all_params.get("protocolVersion")
    spoken = last_members(last_members(answer)["result"]).get("protocolVersion")
    return asked is not None and spoken is not None and string(asked) == string(spoken)


@dataclass(frozen=True, slots=True)
class SEP1364Create:
    """The dialect of SEP-1364's first alternative: `dialects=[SEP1364Create()]`.

    Args:
        required: Whether all messages except `initialize`, `notifications/initialized` and `ping` must carry a session,
            as `capabilities.sessions` announces.
    """

    required: bool = False


@dataclass(frozen=True, slots=True)
class SEP1364Initialize:
    """The dialect of SEP-1364's second alternative: `dialects=[SEP1364Initialize()]`.

    Args:
        sessionless: Whether this server has no sessions: `initialize` returns none, and a request with one gets an
            error.
    """

    sessionless: bool = False


Dialect = SEP1364Create | SEP1364Initialize


@dataclass(frozen=True, slots=True)
class Sep1364:
    """The alternatives that a deployment speaks, as one."""

    creates: SEP1364Create | None
    initializes: SEP1364Initialize | None

    @classmethod
    def of(cls, option: Any) -> Sep1364 | None:
        """Return the checked form of the option `dialects=`, a sequence of dialects, or None where it names none."""
        if isinstance(option, Sequence) and all(isinstance(one, Dialect) for one in option):
            spoken: dict[type, Any] = {type(one): one for one in option}
            if len(spoken) == len(option):
                return cls(spoken.get(SEP1364Create), spoken.get(SEP1364Initialize)) if spoken else None
        raise ConfigurationError(
            f"dialects={option!r} must name each dialect once, as in dialects=[SEP1364Create(), SEP1364Initialize()];"
            " the draft and the transport header need no naming"
        )

    @property
    def is_sessionless(self) -> bool:
        """Whether a message that names a session in these dialects is refused for that."""
        return self.initializes is not None and self.initializes.sessionless

    def requested_session(self, message: Message, in_meta: SessionMetadata | None) -> SessionMetadata | None:
        """Return the session that a message names, `in_meta` by the draft or in the ways of these dialects."""
        named = self.named_id(message)
        if named is not None and self.is_sessionless:
            raise SessionNotFound("sessionless")
        if in_meta is None:
            return None if named is None else SessionMetadata(named, None)
        agreed(in_meta.session_id, named)
        return in_meta

    def named_id(self, message: Message) -> str | None:
        """Return the session that a message names in the ways of these dialects, or None."""
        names = self.creates is not None and message.method in _CREATES | _DELETES
        names = names or (self.initializes is not None and message.method == TERMINATE)
        within = message.all_params.get(FIELD_NAME) if names else None
        return agreed(field(message), None if within is None else _text(within))

    def subject(self, message: Message) -> Subject | None:
        """Return what a message is about, where one of these dialects decides it."""
        method, creates = message.method, self.creates is not None
        if creates and method in _CREATES and (method != CREATE or not _OWN.isdisjoint(message.all_params)):
            subject = Subject.CREATE_SEP1364
        elif creates and method in _DELETES:
            subject = Subject.DELETE
        elif self.initializes is not None and method == TERMINATE:
            subject = Subject.TERMINATE
        else:
            return None
        return Subject.MISPLACED if message.kind is NOTIFICATION else subject

    def requires(self, message: Message, subject: Subject) -> bool:
        """Whether a message must name a session."""
        freed = message.method in _NEVER_REQUIRING or subject in ABOUT_SESSIONS or subject is Subject.REPLY
        return self.creates is not None and self.creates.required and not freed

    @property
    def capability(self) -> bytes:
        """`capabilities.sessions`, as JSON."""
        return b"{}" if self.creates is None else join({"required": self.creates.required})

    def begins_session(self, message: Message, *, modern: bool) -> bool:
        """Whether the answer to a message names a session that it begins or continues."""
        speaks = self.initializes is not None and not self.is_sessionless
        is_handshake = message.method == INITIALIZE and message.kind is REQUEST and not modern
        return speaks and is_handshake and not speaks_draft(message)

    def outgoing(self, message: Message) -> Message:
        """Return a message as today's servers read it: without the field, with the capabilities that they require."""
        body = message.body
        if message.field is not None:
            body = join({name: value for name, value in last_members(body).items() if name != FIELD_NAME})
        if message.method == INITIALIZE and self.creates is not None:
            body = rewrite.with_capabilities(body)
        return message if body is message.body else msgspec.structs.replace(message, body=body, field=None)
