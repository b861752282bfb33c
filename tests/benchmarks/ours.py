"""The middleware in each of its modes, and sessions for requests to name.

A few sessions are created by the middleware itself; a million are minted with its key.
"""

from __future__ import annotations

import json
import secrets
import time
from typing import Any, Final

from starlette.types import ASGIApp

from mcp_sessions import KeyRing, MCPSessionMiddleware
from mcp_sessions._session.claims import SESSION, Claims
from mcp_sessions._tokens.jwt import Tokens

from .traffic import SESSION_KEY, Visits, message

SECRET: Final = "a-secret-for-benchmarks-0123456789-abcdefgh"
RING: Final = KeyRing([SECRET])
NAMES: Final = "mcp-sessions"  # the issuer and audience of a middleware that is told neither
WEEK: Final = 7 * 24 * 3600


MODES: Final[dict[str, dict[str, Any]]] = {
    "no token cache": {"token_cache": 0},
    "idle_timeout": {"idle_timeout": 3600},
    "tracked": {"tracked": True},
}
"""The options of the middleware that change what a request costs."""


def wrap(app: ASGIApp, **options: Any) -> MCPSessionMiddleware:
    """The middleware around an application."""
    return MCPSessionMiddleware(app, keys=RING, **options)


async def created(app: ASGIApp, *, modern: bool = True) -> dict[str, str]:
    """A new session's metadata, as a client sends it back."""
    body = message("sessions/create", {}, modern=modern)
    answer = await Visits.of(app, body, method="sessions/create", modern=modern).answer()
    return _kept(json.loads(answer.body)["result"]["session"], {})


async def used(app: ASGIApp, session: dict[str, str]) -> dict[str, str]:
    """What a client holds of its session after a call in it."""
    answer = await Visits.of(app, message(session=session)).answer()
    return _kept(json.loads(answer.body)["result"]["_meta"][SESSION_KEY], session)


def _kept(told: dict[str, str], held: dict[str, str]) -> dict[str, str]:
    told = {**held, **told}
    return {name: told[name] for name in ("sessionId", "state") if name in told}


def minted(number: int) -> list[str]:
    """So many session ids, all of one length."""
    tokens, now = Tokens(issuer=NAMES, audience=NAMES), int(time.time())
    return [tokens.mint(RING, _claims(now)) for _ in range(number)]


def _claims(now: int) -> Claims:
    jti = secrets.token_urlsafe(16)
    return Claims(kind=SESSION, kid=RING.signing.kid, jti=jti, issued_at=now, expires_at=now + WEEK)


def forged(token: str) -> str:
    """A session id whose signature is another one."""
    signed, _, signature_ = token.rpartition(".")
    return f"{signed}.{'B' if signature_.startswith('A') else 'A'}{signature_[1:]}"
