"""The picture of a session's life in `docs/concepts.md`, drawn from the decision table and from what a store can say.

python tests/support/lifecycle_page.py [PAGE]

States are what requests are answered with, so two ways to end that a client cannot tell apart are one state.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import generated
from clients import START

from mcp_sessions._protocol.decision import NEEDS_LIVE_SESSION, TABLE, Carries, Step
from mcp_sessions._server.sessions import refusal_of
from mcp_sessions._session.claims import SESSION, Claims
from mcp_sessions.errors import SessionEnded, SessionExpired, SessionNotFound
from mcp_sessions.stores.base import Standing

COMMAND = "python tests/support/lifecycle_page.py"
PAGE = generated.DOCS / "concepts.md"
CLAIMS = Claims(kind=SESSION, kid="a", jti="life", issued_at=START, expires_at=START + 1)
LIVE = Standing.LIVE.value
WAYS = {
    Standing.ENDED: "session.end(), sessions/end_all, an operator",
    Standing.IDLE: "idle_timeout",
    Standing.LOST: "a store that lost its data",
}
"""What leads to each standing but the first; the table knows `sessions/delete` besides."""
LIFETIME = "lifetime"
"""What the token says by itself, so that no store has to."""


def state(refusal: SessionNotFound) -> str:
    """The state in which requests are refused so."""
    return "lost" if type(refusal) is SessionNotFound else refusal.reason


def told(refusal: SessionNotFound) -> str:
    """What a request in that state is answered."""
    known = "" if type(refusal) is SessionNotFound else f", reason {refusal.reason}"
    return f"{refusal.code}{known}"


def ways() -> Iterator[tuple[str, str, str]]:
    """From which state, to which, and by what."""
    for about, row in TABLE.items():
        with_none, with_one = row[Carries.NOTHING], row[Carries.SESSION]
        if with_none is Step.CREATE:
            yield "[*]", LIVE, about.value
        if with_one is Step.DELETE:
            yield LIVE, SessionEnded.reason, about.value
        elif with_one in {Step.LIST, *NEEDS_LIVE_SESSION}:
            yield LIVE, LIVE, about.value.partition(",")[0]
    for standing, way in WAYS.items():
        yield LIVE, state(refusal_of(standing, CLAIMS)), way
    yield LIVE, SessionExpired.reason, LIFETIME


def arrows() -> list[str]:
    """All ways between two states as one arrow, since several are drawn on top of each other."""
    found: dict[tuple[str, str], list[str]] = {}
    for before, after, by in ways():
        found.setdefault((before, after), []).append(by)
    return [f"{before} --> {after}: {'<br/>'.join(by)}" for (before, after), by in found.items()]


def names() -> list[str]:
    """The states in which a session is over, with what every request hears from then on."""
    over = {state(refusal): told(refusal) for refusal in (refusal_of(one, CLAIMS) for one in WAYS)}
    return [f'state "{name}<br/>{answer}" as {name}' for name, answer in over.items()]


def picture() -> str:
    """The diagram."""
    return "\n".join(["```mermaid", "stateDiagram-v2", *(f"    {line}" for line in [*names(), *arrows()]), "```"])


if __name__ == "__main__":
    generated.replace(Path(sys.argv[1]) if sys.argv[1:] else PAGE, COMMAND, picture())
