"""The middleware as the benchmarks set it up, and sessions that it creates."""

from __future__ import annotations

import json
from typing import Any, Final

from starlette.types import ASGIApp

from mcp_sessions import KeyRing, Limits, MCPSessionMiddleware

from .traffic import SESSION_KEY, Visits, message

SECRET: Final = "a-secret-for-benchmarks-0123456789-abcdefgh"
RING: Final = KeyRing([SECRET])
UNCACHED: Final = Limits(token_cache=0)


def wrap(app: ASGIApp, **options: Any) -> MCPSessionMiddleware:
    """Put the middleware around an application."""
    return MCPSessionMiddleware(app, **{"keys": RING, **options})


async def created(app: ASGIApp, *, modern: bool = True) -> dict[str, str]:
    """Create a session; return its metadata as a client sends it back."""
    body = message("sessions/create", {}, modern=modern)
    answer = await Visits.of(app, body, method="sessions/create", modern=modern).answer()
    return _retained(json.loads(answer.body)["result"]["session"])


async def used(app: ASGIApp, session: dict[str, str]) -> dict[str, str]:
    """Call a tool in a session; return what the client retains of the session afterwards."""
    answer = await Visits.of(app, message(session=session)).answer()
    return _retained({**session, **json.loads(answer.body)["result"]["_meta"][SESSION_KEY]})


def _retained(metadata: dict[str, str]) -> dict[str, str]:
    return {name: metadata[name] for name in ("sessionId", "state") if name in metadata}


def forged(session: dict[str, str]) -> dict[str, str]:
    """Return the session with another signature."""
    signed, _, signature = session["sessionId"].rpartition(".")
    return {"sessionId": f"{signed}.{'B' if signature.startswith('A') else 'A'}{signature[1:]}"}
