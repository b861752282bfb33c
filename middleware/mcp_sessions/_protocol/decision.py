"""The one decision table: what a request carries, and what is asked of it, give what happens.

`decide` reads `TABLE`; there is no other place where it is decided whether a message is forwarded,
answered or refused. Nothing here verifies a token, and of headers only the session's and the era's are
looked at.
Sources: the data-layer sessions draft ("Using Sessions"), and MCP 2026-07-28 for the eras.

What is offered beyond the draft, by name: methods about sessions, and how each is advertised.

A method that is not offered is none of ours, and goes to the wrapped server like any other. Nothing here answers one.

Dialects: one small room for each way in which a client speaks about sessions on the wire.

A dialect says where in a message a session is named and how it is written back. It never judges
whether a session is good: that is the tokens' and the protocol's business. Beside them stand those that
a deployment chose, as one (`opted`), and what the bridge seals into a transport id (`upstream`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from typing import Any, Final, Literal

import msgspec

from .._session.claims import MODES, looks_like_session_id
from ..errors import refuse
from . import draft
from .jsonrpc import NOTIFICATION, RESPONSE, Message
from .strict_json import string

Lists = Literal["stable", "session", "untouched"]

PROTOCOL_VERSION_KEY: Final = "io.modelcontextprotocol/protocolVersion"
CLIENT_CAPABILITIES_KEY: Final = "io.modelcontextprotocol/clientCapabilities"


class _Word(Enum):
    """An entry of the table. Enum hashes by name in Python code, which costs 0.3 us at each look-up."""

    __hash__ = object.__hash__


class Subject(_Word):
    """What a message is about, as far as sessions go."""

    CREATE = "sessions/create"
    DELETE = "sessions/delete"
    FORK = "sessions/fork"
    SESSIONS = "sessions/list"
    END_ALL = "sessions/end_all"
    OPEN = "SEP-1364's create, which may name a session to renew"
    MISPLACED = "one of these without an id"
    LIST = "a list"
    REPLY = "a posted response"
    OTHER = "anything else"


class Carries(_Word):
    """What a message carries, against what the policy asks."""

    NOTHING = "no session, and none is needed"
    TOO_LITTLE = "no session, and one is needed"
    SESSION = "a session"


class Step(_Word):
    """What happens to a message that is not refused."""

    CREATE = "mint a session and answer"
    OPEN = "mint a session, keep what its client can do and answer"
    RENEW = "keep what the client can do now and answer"
    DELETE = "end the session and answer"
    FORK = "mint a fork of the session, answer and echo it"
    SESSIONS = "list the caller's sessions and answer"
    END_ALL = "end the caller's sessions and answer"
    FORWARD = "forward as it came"
    ATTACH = "forward with the session attached, echo it"
    STABLE = "forward with the session taken out, echo it"
    UNTOUCHED = "forward as it came, though it names a session"
    LIST = "whichever of the three above the option `lists` names"


# Found once, for the reason that `jsonrpc` gives.
REPLY: Final = Subject.REPLY
OTHER: Final = Subject.OTHER
NOTHING: Final = Carries.NOTHING
SESSION: Final = Carries.SESSION
LIST: Final = Step.LIST
FORWARD: Final = Step.FORWARD
ATTACH: Final = Step.ATTACH
STABLE: Final = Step.STABLE

ANSWERED: Final = frozenset({Step.CREATE, Step.OPEN, Step.RENEW, Step.DELETE, Step.FORK, Step.SESSIONS, Step.END_ALL})
"""These steps are ours: the wrapped server is only asked whether it would let the caller in."""

NEEDS_LIVE_SESSION: Final = (ANSWERED - {Step.CREATE, Step.OPEN}) | {Step.ATTACH, Step.STABLE, Step.UNTOUCHED}
"""Before these steps the session must verify: an invalid one fails every request that carries it."""

ECHOES: Final = frozenset({Step.ATTACH, Step.STABLE})
"""After these steps the session is written into a successful response."""

TABLE: Final[Mapping[Subject, Mapping[Carries, Step | str]]] = {
    Subject.CREATE: {
        Carries.NOTHING: Step.CREATE,
        Carries.TOO_LITTLE: Step.CREATE,
        Carries.SESSION: "session_on_create",
    },
    Subject.DELETE: {
        Carries.NOTHING: "session_missing",
        Carries.TOO_LITTLE: "session_missing",
        Carries.SESSION: Step.DELETE,
    },
    Subject.FORK: {
        Carries.NOTHING: "session_missing",
        Carries.TOO_LITTLE: "session_missing",
        Carries.SESSION: Step.FORK,
    },
    Subject.SESSIONS: dict.fromkeys(Carries, Step.SESSIONS),
    Subject.END_ALL: dict.fromkeys(Carries, Step.END_ALL),
    Subject.OPEN: {
        Carries.NOTHING: Step.OPEN,
        Carries.TOO_LITTLE: Step.OPEN,
        Carries.SESSION: Step.RENEW,
    },
    Subject.MISPLACED: {
        Carries.NOTHING: "session_method_as_notification",
        Carries.TOO_LITTLE: "session_method_as_notification",
        Carries.SESSION: "session_method_as_notification",
    },
    Subject.LIST: {
        Carries.NOTHING: Step.FORWARD,
        Carries.TOO_LITTLE: "required",
        Carries.SESSION: Step.LIST,
    },
    Subject.REPLY: {
        Carries.NOTHING: Step.FORWARD,
        Carries.TOO_LITTLE: Step.FORWARD,
        Carries.SESSION: Step.FORWARD,
    },
    Subject.OTHER: {
        Carries.NOTHING: Step.FORWARD,
        Carries.TOO_LITTLE: "required",
        Carries.SESSION: Step.ATTACH,
    },
}

LISTS: Final[Mapping[Lists, Step]] = {
    "stable": Step.STABLE,
    "session": Step.ATTACH,
    "untouched": Step.UNTOUCHED,
}

ADVERTISING: Final = frozenset({"initialize", "server/discover"})
"""The methods whose result tells a client that sessions exist here."""

ABOUT_SESSIONS: Final = frozenset(
    {Subject.CREATE, Subject.DELETE, Subject.FORK, Subject.SESSIONS, Subject.END_ALL, Subject.OPEN, Subject.MISPLACED}
)
"""What concerns the session that the message names, whatever the header says."""

LIST_METHODS: Final = frozenset(
    {"tools/list", "prompts/list", "resources/list", "resources/templates/list", "server/discover"}
)

SUBJECTS: Final[Mapping[str, Subject]] = {
    draft.CREATE: Subject.CREATE,
    draft.DELETE: Subject.DELETE,
    **dict.fromkeys(LIST_METHODS, Subject.LIST),
}
"""What the methods are about that the draft and MCP have; extensions add theirs."""

_DEFAULT_LISTS: Final[Mapping[bool, Lists]] = {True: "stable", False: "session"}


def attended(subjects: Mapping[str, Subject]) -> frozenset[str]:
    """Where nothing needs a session, a message that names none passes as it is unless its method is one of these."""
    return ADVERTISING.union(method for method, about in subjects.items() if about in ABOUT_SESSIONS)


def subject(message: Message, subjects: Mapping[str, Subject] = SUBJECTS) -> Subject:
    """What a message is about.

    Args:
        message: The message.
        subjects: What the methods are about that are told apart.
    """
    found = subjects.get(message.method)
    if found is None:
        return REPLY if message.kind is RESPONSE else OTHER
    misplaced = message.kind is NOTIFICATION and found is not Subject.LIST
    return Subject.MISPLACED if misplaced else found


def decide(about: Subject, carries: Carries) -> Step:
    """The step for a message, read from `TABLE`.

    Args:
        about: What the message is about.
        carries: What it carries.

    Raises:
        Refusal: The table says so, by its reason.
    """
    step = TABLE[about][carries]
    if not isinstance(step, str):
        return step
    raise refuse(step)


def list_step(lists: Lists | None, *, modern: bool) -> Step:
    """What `Step.LIST` stands for.

    Args:
        lists: The deployment's choice, or None for the era's own.
        modern: Whether the request belongs to the modern era.
    """
    return LISTS[lists or _DEFAULT_LISTS[modern]]


def ours_of(session_ids: Sequence[str]) -> str | None:
    """The `Mcp-Session-Id` header where it is one of ours, or None where it is absent or the server's own.

    What is ours is told by the token's envelope alone, never by whether it verifies: a value that
    looks like ours must not reach the application, its logs or its spans.

    Args:
        session_ids: Every copy of the header.

    Raises:
        Refusal: `duplicate_session_header`: There are several, and two readers may take different ones.
    """
    if not session_ids:
        return None
    if len(session_ids) > 1:
        raise refuse("duplicate_session_header")
    return session_ids[0] if looks_like_session_id(session_ids[0]) else None


def any_of(session_ids: Sequence[str]) -> str | None:
    """The `Mcp-Session-Id` header, whosever it is: where clients know ids of ours only, any other is a dead one.

    Args:
        session_ids: Every copy of the header.

    Raises:
        Refusal: `duplicate_session_header`: There are several, and two readers may take different ones.
    """
    if len(session_ids) > 1:
        raise refuse("duplicate_session_header")
    return session_ids[0] if session_ids else None


def check_envelope(message: Message, *, version: str | None, methods: tuple[str, ...]) -> None:
    """The modern era's checks on a request that we answer ourselves, in the specification's order.

    Args:
        message: The request.
        version: The `MCP-Protocol-Version` header.
        methods: Every `Mcp-Method` header.

    Raises:
        Refusal: `envelope_incomplete`: `_meta` lacks the protocol version or the client capabilities.
        Refusal: `version_header_mismatch`: The version header differs from the envelope's.
        Refusal: `method_header_mismatch`: `Mcp-Method` is missing, doubled or differs from the method.
    """
    meta = message.meta or {}
    stated = string(meta[PROTOCOL_VERSION_KEY]) if PROTOCOL_VERSION_KEY in meta else None
    if stated is None or CLIENT_CAPABILITIES_KEY not in meta:
        raise refuse("envelope_incomplete")
    if stated != version:
        raise refuse("version_header_mismatch")
    if methods != (message.method,):
        raise refuse("method_header_mismatch")


class Extension(msgspec.Struct, frozen=True):
    """One method beyond the draft.

    Args:
        method: Its name on the wire.
        subject: What a message with it is about.
        settings: What `capabilities.experimental.sessions` says of it.
        needs_records: Whether it is there only where sessions are tracked.
    """

    method: str
    subject: Subject
    settings: Mapping[str, Any]
    needs_records: bool = False


EXTENSIONS: Final[Mapping[str, Extension]] = {
    "fork": Extension("sessions/fork", Subject.FORK, {"fork": MODES, "descendants": True}),
    "list": Extension("sessions/list", Subject.SESSIONS, {"list": True}, needs_records=True),
    "end_all": Extension("sessions/end_all", Subject.END_ALL, {"endAll": True}, needs_records=True),
}


def offered(names: Collection[str], *, tracked: bool) -> list[Extension]:
    """The extensions of a deployment.

    Args:
        names: Those that were asked for.
        tracked: Whether sessions are recorded.
    """
    named = (extension for name, extension in EXTENSIONS.items() if name in names)
    return [extension for extension in named if tracked or not extension.needs_records]


def subjects(extensions: Sequence[Extension]) -> dict[str, Subject]:
    """What each method that is read here is about."""
    return {**SUBJECTS, **{extension.method: extension.subject for extension in extensions}}


def settings(required: str, extensions: Sequence[Extension]) -> bytes:
    """What `capabilities.experimental.sessions` says, as JSON.

    Args:
        required: Which requests need a session: `"never"`, `"some"` or `"always"`.
        extensions: What is offered.
    """
    said: dict[str, Any] = {"required": required}
    for extension in extensions:
        said |= extension.settings
    return msgspec.json.encode(said)
