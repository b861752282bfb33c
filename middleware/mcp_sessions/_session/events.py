"""The facts that telemetry turns into spans, metrics and log lines.

Each is frozen, holds no credential and no message body, and names a session by its `ref` only.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from .endings import EndedBy


class SessionCreated(msgspec.Struct, frozen=True):
    """A session was created, or, where a cookie names it, first used."""

    ref: str
    expires_at: int  # Unix seconds
    kind: str | None = None  # of a session that the store remembers, such as `"user"`; None if its client holds an id


class SessionUsed(msgspec.Struct, frozen=True):
    """A request of a live session was forwarded to the application."""

    ref: str
    method: str


class SessionDeleted(msgspec.Struct, frozen=True):
    """A session was ended, or, where sessions are tracked, expired. Every worker refuses it."""

    ref: str
    reason: str
    seconds: float  # how long it lived
    trace: str | None = None  # the traceparent of its start, if that is known
    by: EndedBy = "application"  # who ended it
    name: str | None = None  # of the person or program that ended it, if it gave one


class RequestRefused(msgspec.Struct, frozen=True):
    """A request was answered with an error. `ref` is set only if the session id is authentic.

    `claim` names the claim of the session id that is wrong, for the reason `token_claim`.
    """

    reason: str
    code: int
    method: str | None
    ref: str | None = None
    claim: str | None = None


SessionEvent = SessionCreated | SessionUsed | SessionDeleted | RequestRefused
Listener = Callable[[SessionEvent], None]
