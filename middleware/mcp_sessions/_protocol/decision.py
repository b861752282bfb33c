"""Whether a message is forwarded, answered or refused: `decide` reads it from a table.

A message has a subject and carries a session or none; `TABLE` has an action or a refusal for each pair. The draft names
a session first, then the dialects of SEP-1364, the transport header, and last the cookie; it is verified afterwards.
Sources: the data-layer sessions draft ("Using Sessions"), and MCP 2026-07-28 for the eras.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum
from typing import Final, Literal

import msgspec
from msgspec import UNSET

from .._errors import SessionNotFound
from .._refusals import refusal
from .._session.claims import COEXISTING, COOKIE, FIELD, PRINCIPAL, SESSION, Kind, RedactedRepr
from . import draft
from .cookies import DISCOVER, SHARED_JAR
from .draft import ABOUT_SESSIONS, INITIALIZE, SessionMetadata, Subject
from .headers import SESSION_HEADER, RequestHeaders
from .jsonrpc import NOTIFICATION, REQUEST, RESPONSE, Message
from .policy import LIST_METHODS, Policy
from .sep1364 import Sep1364, field, mirrors
from .strict_json import string

Lists = Literal["stable", "session", "untouched"]


class SessionPresence(str, Enum):
    """What a message carries, against what the policy requires."""

    NOTHING = "no session, and none is required"
    REQUIRED_BUT_MISSING = "no session, but one is required"
    SESSION = "a session"


class Action(str, Enum):
    """What happens to a message that is not refused."""

    CREATE = "mint a session and answer"
    CREATE_SEP1364 = "mint a session, store the client's capabilities and answer"
    UPDATE_CAPABILITIES = "store the client's new capabilities and answer"
    DELETE = "end the session and answer"
    FORK = "mint a fork of the session, answer and echo it"
    LIST_SESSIONS = "list the caller's sessions and answer"
    FORWARD = "forward unchanged"
    ATTACH = "forward with the session attached, echo it"
    STRIP_SESSION = "forward without the session, echo it"
    PASSTHROUGH = "forward without the session"
    LIST = "ATTACH, STRIP_SESSION or PASSTHROUGH, as the option `lists` says"


ANSWERED: Final = frozenset(
    {Action.CREATE, Action.CREATE_SEP1364, Action.UPDATE_CAPABILITIES, Action.DELETE, Action.FORK, Action.LIST_SESSIONS}
)
"""These actions are ours: the wrapped server is only asked whether it would let the caller in."""

ECHOES: Final = frozenset({Action.ATTACH, Action.STRIP_SESSION})
"""After these actions the session is written into a successful response."""

UNUSED: Final = frozenset({Action.STRIP_SESSION, Action.PASSTHROUGH})
"""After these actions the application has not seen the session."""

_NOTHING, _MISSING, _SESSION = SessionPresence
TABLE: Final[Mapping[Subject, Mapping[SessionPresence, Action | str]]] = {
    Subject.CREATE: {_NOTHING: Action.CREATE, _MISSING: Action.CREATE, _SESSION: "session_on_create"},
    Subject.DELETE: {_NOTHING: "session_missing", _MISSING: "session_missing", _SESSION: Action.DELETE},
    Subject.TERMINATE: {_NOTHING: "field_missing", _MISSING: "field_missing", _SESSION: Action.DELETE},
    Subject.FORK: {_NOTHING: "session_missing", _MISSING: "session_missing", _SESSION: Action.FORK},
    Subject.LIST_SESSIONS: dict.fromkeys(SessionPresence, Action.LIST_SESSIONS),
    Subject.CREATE_SEP1364: {
        _NOTHING: Action.CREATE_SEP1364,
        _MISSING: Action.CREATE_SEP1364,
        _SESSION: Action.UPDATE_CAPABILITIES,
    },
    Subject.MISPLACED: dict.fromkeys(SessionPresence, "session_method_as_notification"),
    Subject.LIST: {_NOTHING: Action.FORWARD, _MISSING: "required", _SESSION: Action.LIST},
    Subject.REPLY: dict.fromkeys(SessionPresence, Action.FORWARD),
    Subject.OTHER: {_NOTHING: Action.FORWARD, _MISSING: "required", _SESSION: Action.ATTACH},
}
"""The action for each subject and what it carries, or the reason of a refusal."""

LISTS: Final[Mapping[Lists, Action]] = {
    "stable": Action.STRIP_SESSION,
    "session": Action.ATTACH,
    "untouched": Action.PASSTHROUGH,
}

CANCELLED: Final = "notifications/cancelled"  # its sender no longer expects an answer to a request

ADVERTISING: Final = frozenset({INITIALIZE, DISCOVER})
"""The methods whose result tells a client that sessions exist here."""

SESSIONLESS_METHODS: Final = ADVERTISING | {"ping"}

SUBJECTS: Final[Mapping[str, Subject]] = {
    draft.CREATE: Subject.CREATE,
    draft.DELETE: Subject.DELETE,
    **dict.fromkeys(LIST_METHODS | {DISCOVER}, Subject.LIST),
}
"""The subjects of the methods that the draft and MCP have; extensions add theirs."""

_DEFAULT_LISTS: Final[Mapping[bool, Lists]] = {True: "stable", False: "session"}  # in the modern and the legacy era


class Decision(RedactedRepr, msgspec.Struct, frozen=True):
    """What happens to a message, and the sessions that must be opened first."""

    action: Action
    metadata: SessionMetadata | None = None  # the session that the message names, unverified
    header_token: str | None = None  # what a header names as a transport session, unverified
    kind: Kind = SESSION  # what the token of `metadata` is used as
    fail_open: bool = False  # whether it goes on without a revocation check where the store does not answer
    contradicts: bool = False  # whether the header is not that session's, which only its owner learns

    @property
    def names_session(self) -> bool:
        return self.metadata is not None or self.header_token is not None


PASS: Final = Decision(Action.FORWARD)  # on a message that concerns no session


class Rules(msgspec.Struct, frozen=True):
    """What decides in one deployment."""

    policy: Policy
    subjects: Mapping[str, Subject]
    lists: Lists | None
    legacy_only: bool
    fail_open: bool  # whether a session is accepted though the store does not answer
    reads_transport: bool  # whether a header of ours can name a transport session
    bridges: bool  # whether every session header that clients send is one of ours
    kind_of: Callable[[str], Kind | None]  # what a token may be used as; None where it is not authentic
    sep1364: Sep1364 | None

    @property
    def security_sensitive(self) -> bool:
        """Whether a message that passes undecided would evade a rule."""
        return self.legacy_only or self.bridges or self.sep1364 is not None or self.policy.summary != "never"


class Credentials(RedactedRepr, msgspec.Struct, frozen=True):
    """The sessions that a message names, unverified."""

    metadata: SessionMetadata | None = None  # in its body, else by our cookie
    header_token: str | None = None  # in a header that names a transport session
    kind: Kind = SESSION  # where `metadata` is, or `"principal"` where nothing is named and the caller's counts
    contradicts: bool = False  # the header is not the session of the field


def decide(message: Message, headers: RequestHeaders, rules: Rules, *, has_principal_session: bool = False) -> Decision:
    """Decide what happens to a message, whose caller may have a session by its principal alone.

    Raises a `Refusal` where the era is not served, the message contradicts itself or its header, or the table has one.
    """
    if rules.legacy_only and headers.is_modern:
        raise refusal("discovery_refused" if message.method == DISCOVER else "modern_era")
    subject = subject_of(message, rules)
    credentials = identify(message, subject, headers, rules, has_principal_session=has_principal_session)
    action = TABLE[subject][_presence(message, subject, credentials, rules)]
    if not isinstance(action, Action):
        raise refusal("cookie_jar_shared" if action == "required" and headers.cookie == SHARED_JAR else action)
    if action is Action.LIST:
        action = list_action(rules.lists, modern=headers.is_modern)
    if credentials.kind == PRINCIPAL and action is not Action.ATTACH:
        return PASS
    if credentials.kind == COOKIE and action is Action.STRIP_SESSION:
        action = Action.PASSTHROUGH  # there is nothing to take out, and nothing to echo
    kind = _kind(credentials, action, rules)
    opens = credentials.metadata is not None or credentials.header_token is not None or kind == PRINCIPAL
    fail_open = opens and rules.fail_open and action not in ANSWERED and not _is_required(message, rules)
    return Decision(action, credentials.metadata, credentials.header_token, kind, fail_open, credentials.contradicts)


def subject_of(message: Message, rules: Rules) -> Subject:
    """Return what a message is about."""
    if rules.sep1364 is not None and (subject := rules.sep1364.subject(message)) is not None:
        return subject
    known = rules.subjects.get(message.method)
    if known is None:
        return Subject.REPLY if message.kind is RESPONSE else Subject.OTHER
    return Subject.MISPLACED if message.kind is NOTIFICATION and known is not Subject.LIST else known


def identify(
    message: Message, subject: Subject, headers: RequestHeaders, rules: Rules, *, has_principal_session: bool
) -> Credentials:
    """Return what names the session of a message: the draft first, then SEP-1364, the header, and last the cookie.

    Where nothing does, it may be the principal's. Raises a `Refusal` where the metadata cannot be read, or the header
    contradicts the body.
    """
    sep1364, header_token, contradicts = rules.sep1364, None, False
    metadata = requested_session(message, sep1364)
    if headers.session_id is not None or sep1364 is not None:
        header_token, contradicts = _header(message, metadata, headers, rules)
    if metadata is not None:
        kind = FIELD if sep1364 is not None and message.session is None else SESSION
        return Credentials(metadata, header_token, kind, contradicts)
    cookie = headers.cookie if header_token is None and headers.cookie != SHARED_JAR else None
    # The answer to `server/discover` decides about the cookie.
    if cookie is None or message.method == DISCOVER or subject is Subject.REPLY or subject in ABOUT_SESSIONS:
        is_principals = has_principal_session and _may_be_principals(message, headers, subject)
        return Credentials(None, header_token, PRINCIPAL if is_principals else SESSION)
    return Credentials(SessionMetadata(cookie), kind=COOKIE)


def _may_be_principals(message: Message, headers: RequestHeaders, subject: Subject) -> bool:
    """Whether a message that names no session is one that uses its principal's: no handshake, ping or notification."""
    is_of_none = (
        message.kind is not REQUEST or message.method in SESSIONLESS_METHODS or SESSION_HEADER in headers.by_name
    )
    return subject in {Subject.OTHER, Subject.LIST} and not is_of_none


def _presence(message: Message, subject: Subject, credentials: Credentials, rules: Rules) -> SessionPresence:
    metadata, sep1364 = credentials.metadata, rules.sep1364
    if sep1364 is not None and (metadata is None or credentials.kind == COOKIE) and sep1364.requires(message, subject):
        raise refusal("required")
    by_header = credentials.header_token is not None and subject not in ABOUT_SESSIONS
    if metadata is not None or by_header or credentials.kind == PRINCIPAL:
        return SessionPresence.SESSION
    needs_one = subject not in ABOUT_SESSIONS and _is_required(message, rules)
    return SessionPresence.REQUIRED_BUT_MISSING if needs_one else SessionPresence.NOTHING


def _kind(credentials: Credentials, action: Action, rules: Rules) -> Kind:
    """Return what the token in the body or the cookie must be good for."""
    if credentials.kind != FIELD or credentials.metadata is None:
        return credentials.kind
    if action is Action.FORK:
        raise refusal("session_missing")
    kind = rules.kind_of(credentials.metadata.session_id)
    if kind is None or kind == SESSION:  # a session of the draft is named in `_meta`, where its state is
        raise SessionNotFound("token_kind")
    return kind


def list_action(lists: Lists | None, *, modern: bool) -> Action:
    """Return what `Action.LIST` stands for: the deployment's choice, or the era's own where that is None."""
    return LISTS[lists or _DEFAULT_LISTS[modern]]


def requested_session(message: Message, sep1364: Sep1364 | None) -> SessionMetadata | None:
    """Return the session that a message names in its body, unverified: by the draft, else by a dialect of SEP-1364."""
    metadata = None if message.session is None else draft.parse_metadata(message.session)
    return metadata if sep1364 is None else sep1364.requested_session(message, metadata)


def involves_session(item: Message, rules: Rules) -> bool:
    """Whether an item of a batch names a session, is about one or needs one: batches are forwarded as they come."""
    subject = subject_of(item, rules)
    if subject in ABOUT_SESSIONS or item.session is not None:
        return True
    sep1364 = rules.sep1364
    is_named = sep1364 is not None and (sep1364.requires(item, subject) or sep1364.named_id(item) is not None)
    return is_named or _is_required(item, rules)


def _header(
    message: Message, metadata: SessionMetadata | None, headers: RequestHeaders, rules: Rules
) -> tuple[str | None, bool]:
    """Return the transport session that our header names, and whether the header contradicts a field of SEP-1364."""
    header = None if message.method == INITIALIZE else headers.session_id  # it begins anew, whatever it carries
    named = None if rules.sep1364 is None else field(message)
    kind = None if named is None or message.session is not None else rules.kind_of(named)
    # Across the bridge, the server's own session is sealed in ours, beside which a session of a field can stand.
    may_name = named is None or (rules.bridges and kind == COEXISTING)
    if header is not None and may_name and draft.names_transport(header, metadata, rules.reads_transport):
        return header, False
    if named is None:
        return None, False
    contradicts = not mirrors(named, kind, headers.first(SESSION_HEADER), is_ours=headers.session_id is not None)
    if contradicts and message.session is not None:
        raise refusal("session_header_mismatch")
    return None, contradicts


def _is_required(message: Message, rules: Rules) -> bool:
    kind = message.kind
    return kind is not RESPONSE and rules.policy.requires(message.method, message.target, kind is NOTIFICATION)


def check_envelope(message: Message, *, version: str | None, methods: list[str]) -> None:
    """Make the modern era's checks on a request that we answer ourselves, in the specification's order."""
    meta = message.params.meta
    stated = None if meta is None or meta.protocol_version is UNSET else string(meta.protocol_version)
    if stated is None or meta is None or meta.client_capabilities is UNSET:
        raise refusal("envelope_incomplete")
    if stated != version:
        raise refusal("version_header_mismatch")
    if methods != [message.method]:
        raise refusal("method_header_mismatch")


EXTENSIONS: Final[Mapping[str, Subject]] = {"fork": Subject.FORK, "list": Subject.LIST_SESSIONS}
"""The methods `sessions/NAME` beyond the draft."""


def offered(names: Collection[str], *, tracked: bool) -> list[str]:
    """Return the extensions that a deployment names, as far as it can have them: only tracked sessions are listed."""
    return [name for name in EXTENSIONS if name in names and (tracked or name != "list")]


def subjects(extensions: Sequence[str]) -> dict[str, Subject]:
    """Return the subject of each method that has one of its own."""
    return {**SUBJECTS, **{f"sessions/{name}": EXTENSIONS[name] for name in extensions}}


def settings(required: str, extensions: Sequence[str]) -> bytes:
    """Return `capabilities.experimental.sessions`, as JSON: which requests need a session, and what is offered."""
    return msgspec.json.encode({"required": required, **dict.fromkeys(extensions, True)})
