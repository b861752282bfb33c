"""The life of a session, from the decision table and a store's standings, as `docs/images/lifecycle.svg` shows it.

A state is an answer to requests, so two ways to end that a client cannot distinguish are one state.
"""

from __future__ import annotations

from collections.abc import Iterator

from clients import START

from mcp_sessions._errors import SessionEnded, SessionExpired, SessionNotFound
from mcp_sessions._protocol.decision import NEEDS_LIVE_SESSION, TABLE, Action, SessionPresence
from mcp_sessions._server.sessions import refusal_of
from mcp_sessions._session.claims import SESSION, Claims
from mcp_sessions.stores._base import SessionStatus

CLAIMS = Claims(
    kind=SESSION, issuer="mcp-sessions", audience="mcp-sessions", jti="life", issued_at=START, expires_at=START + 1
)
LIVE = SessionStatus.LIVE.value
WAYS = {
    SessionStatus.ENDED: "session.end(), an operator",
    SessionStatus.IDLE: "idle_timeout",
    SessionStatus.UNKNOWN: "a store that lost its data",
}
"""What leads to each standing but the first; `sessions/delete` is in the decision table."""
LIFETIME = "lifetime"
"""The end that the token itself states, without a store."""


def state(refusal: SessionNotFound) -> str:
    """Return the state in which requests are refused so."""
    return "lost" if type(refusal) is SessionNotFound else refusal.reason


def answer(refusal: SessionNotFound) -> str:
    """Return the answer to a request in that state."""
    known = "" if type(refusal) is SessionNotFound else f", reason {refusal.reason}"
    return f"{refusal.code}{known}"


def ways() -> Iterator[tuple[str, str, str]]:
    """Yield each change of state with its cause."""
    for about, row in TABLE.items():
        with_none, with_one = row[SessionPresence.NOTHING], row[SessionPresence.SESSION]
        if with_none is Action.CREATE:
            yield "[*]", LIVE, about.value
        if with_one is Action.DELETE:
            yield LIVE, SessionEnded.reason, about.value
        elif with_one in {Action.LIST, *NEEDS_LIVE_SESSION}:
            yield LIVE, LIVE, about.value.partition(",")[0]
    for standing, way in WAYS.items():
        yield LIVE, state(refusal_of(standing, CLAIMS)), way
    yield LIVE, SessionExpired.reason, LIFETIME


def arrows() -> dict[tuple[str, str], list[str]]:
    """Return all causes by the two states between which they lead."""
    found: dict[tuple[str, str], list[str]] = {}
    for before, after, by in ways():
        found.setdefault((before, after), []).extend(by.split(", "))
    return found


def names() -> dict[str, str]:
    """Return the states in which a session is over, with the answer to every request from then on."""
    return {state(refusal): answer(refusal) for refusal in (refusal_of(one, CLAIMS) for one in WAYS)}
