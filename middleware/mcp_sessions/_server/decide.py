"""What happens to a message: `decide` asks the dialects, and a table says whether to forward, answer or refuse it.

A message has a subject and carries a session or none; `TABLE` has the action for each pair. Credentials are verified
afterwards. No I/O, no clock.
Sources: the data-layer sessions draft ("Using Sessions"), and MCP 2026-07-28 for the eras.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

import msgspec

from .._dialects.base import Answers, Credential, Dialects, NoCredential
from .._protocol.jsonrpc import NOTIFICATION, RESPONSE, Message
from .._protocol.methods import DISCOVER, HANDSHAKES, LISTS
from .._protocol.policy import Policy
from .._refusals import refusal
from .._session.claims import RedactedRepr
from .context import Request
from .options import Lists


class Subject(str, Enum):
    """What a message is about."""

    NEEDS_SESSION = "a method that a dialect answers for a session"
    NEEDS_NONE = "a method that a dialect answers, and which must not carry a session"
    ANSWERED = "another method that a dialect answers"
    MISPLACED = "one of these without an id"
    LIST = "a list"
    REPLY = "a posted response"
    OTHER = "anything else"


class Presence(str, Enum):
    """What a message carries, and what the policy requires."""

    NOTHING = "no session, and none is required"
    REQUIRED_BUT_MISSING = "no session, but one is required"
    SESSION = "a session"


class Action(str, Enum):
    """What happens to a message."""

    ANSWER = "answer"
    REFUSE = "refuse"
    FORWARD = "forward unchanged"
    ATTACH = "forward with the session attached, echo it"
    ECHO = "forward without the session, echo it"
    HIDE = "forward without the session"
    LIST = "ATTACH, ECHO or HIDE, as the option `lists` says"


_NOTHING, _MISSING, _SESSION = Presence
TABLE: Final[Mapping[Subject, Mapping[Presence, Action]]] = {
    Subject.NEEDS_SESSION: {_NOTHING: Action.REFUSE, _MISSING: Action.REFUSE, _SESSION: Action.ANSWER},
    Subject.NEEDS_NONE: {_NOTHING: Action.ANSWER, _MISSING: Action.ANSWER, _SESSION: Action.REFUSE},
    Subject.ANSWERED: dict.fromkeys(Presence, Action.ANSWER),
    Subject.MISPLACED: dict.fromkeys(Presence, Action.REFUSE),
    Subject.LIST: {_NOTHING: Action.FORWARD, _MISSING: Action.REFUSE, _SESSION: Action.LIST},
    Subject.REPLY: dict.fromkeys(Presence, Action.FORWARD),
    Subject.OTHER: {_NOTHING: Action.FORWARD, _MISSING: Action.REFUSE, _SESSION: Action.ATTACH},
}
"""The action for each subject and what it carries."""

LIST_ACTIONS: Final[Mapping[Lists, Action]] = {
    "stable": Action.ECHO,
    "session": Action.ATTACH,
    "untouched": Action.HIDE,
}
DEFAULT_LISTS: Final[Mapping[bool, Lists]] = {True: "stable", False: "session"}  # in the modern and the legacy era

# Bound once: before Python 3.12 it takes long to look up a member of an enum.
_REFUSE, _ATTACH, _LIST = Action.REFUSE, Action.ATTACH, Action.LIST
_ABOUT_LIST, _OTHER = Subject.LIST, Subject.OTHER
_BY_SESSION: Final[Mapping[str, Subject]] = {
    "required": Subject.NEEDS_SESSION,
    "refused": Subject.NEEDS_NONE,
    "optional": Subject.ANSWERED,
}


class Plan(RedactedRepr, msgspec.Struct, frozen=True):
    """What happens to a message, and the sessions that must be opened first."""

    action: Action
    credentials: tuple[Credential, ...] = ()  # the session's, and those that are only verified
    answers: Answers | None = None  # set if a dialect answers it
    fail_open: bool = False  # whether it goes on without a revocation check if the store does not answer


FORWARD_UNCHANGED: Final = Plan(Action.FORWARD)


class Rules(msgspec.Struct, frozen=True):
    """The rules of one deployment."""

    dialects: Dialects
    policy: Policy
    lists: Lists | None
    legacy_only: bool
    fail_open: bool  # whether a session is accepted if the store does not answer
    reads_everything: bool = False  # whether a message that passes undecided would evade a rule

    def concern(self, message: Message) -> bool:
        """Return True if a message needs or carries a session, or is a method of a dialect."""
        return is_required_by(self.policy, message) or any(concerns(message) for concerns in self.dialects.concerns)


def decide(request: Request, rules: Rules) -> Plan:
    """Decide what happens to a message, and note on the request what its dialects say of it.

    Raises:
        Refusal: The era is not served, the message contradicts itself or its header, or the table refuses it.
    """
    message, dialects, is_modern = request.message, rules.dialects, request.headers.is_modern
    assert message is not None  # `decide_unread` decides about all other requests
    if rules.legacy_only and is_modern:
        raise refusal("discovery_refused" if message.method == DISCOVER else "modern_era")
    answers = find_answers(request, dialects)
    request.is_answered = answers is not None
    subject = subject_of(message, answers)
    found = identify(request, dialects)
    own = found[0] if found else None
    for requires in dialects.requires:
        if answers is None and requires(request, own):
            raise refusal("required")
    action = TABLE[subject][_presence(own, answers, message, rules.policy)]
    if action is _REFUSE:
        raise refusal(_reason(subject, answers, request.absent))
    if action is _LIST:
        action = LIST_ACTIONS[rules.lists or DEFAULT_LISTS[is_modern]]
    request.attaches = action is _ATTACH
    if message.method in HANDSHAKES:
        request.read_caller()  # a session may begin with the answer
        request.is_reached = any(reaches(request) for reaches in dialects.reaches)
    if own is None and answers is None and action is FORWARD_UNCHANGED.action:
        return FORWARD_UNCHANGED
    may_go_on = own is not None and rules.fail_open and answers is None
    fail_open = may_go_on and not is_required_by(rules.policy, message)
    return Plan(action, tuple(found), answers, fail_open)


def subject_of(message: Message, answers: Answers | None) -> Subject:
    """Return what a message is about, given how a dialect answers it."""
    if answers is not None:
        return Subject.MISPLACED if message.kind is NOTIFICATION else _BY_SESSION[answers.session]
    if message.kind is RESPONSE:
        return Subject.REPLY
    return _ABOUT_LIST if message.method in LISTS or message.method == DISCOVER else _OTHER


def find_answers(request: Request, dialects: Dialects) -> Answers | None:
    """Return how a dialect answers a request itself, or None if none does."""
    for answers in dialects.answers:
        found: Answers | None = answers(request)
        if found is not None:
            return found
    return None


def identify(request: Request, dialects: Dialects) -> list[Credential]:
    """Return what identifies the session of a request, in order of precedence; note why nothing does.

    Also note the id that its sender wrote into the message, which a refusal repeats.
    """
    found: list[Credential] = []
    for find in dialects.find:
        one = find(request, found)
        if isinstance(one, Credential):
            found.append(one)
            if one.in_message:
                request.sent_id = one.id
        elif one is not None and request.absent is None:
            request.absent = one
    return found


def _presence(own: Credential | None, answers: Answers | None, message: Message, policy: Policy) -> Presence:
    # A method of a dialect is about the session that the message names, whatever the headers name.
    if own is not None and (answers is None or own.in_message):
        return _SESSION
    return _MISSING if answers is None and is_required_by(policy, message) else _NOTHING


def _reason(subject: Subject, answers: Answers | None, absent: NoCredential | None) -> str:
    if subject is Subject.MISPLACED:
        return "session_method_as_notification"
    if answers is not None:
        return answers.reason
    return "required" if absent is None else absent.reason


def is_required_by(policy: Policy, message: Message) -> bool:
    """Return whether `require=` demands a session for a message."""
    kind = message.kind
    return kind is not RESPONSE and policy.requires(message.method, message.target, kind is NOTIFICATION)
