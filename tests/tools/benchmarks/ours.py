"""The middleware as the benchmarks set it up. What is not its public face is imported here and nowhere else."""

from __future__ import annotations

import json
import time
from typing import Any, Final

from apps import grouped
from starlette.types import ASGIApp

from mcp_sessions import KeyRing, MCPSessionMiddleware
from mcp_sessions._errors import StoreUnavailable
from mcp_sessions._session.claims import AUDIENCE, Claims
from mcp_sessions._session.data import Namespace
from mcp_sessions.stores import make
from mcp_sessions.stores._base import LIVE, Record, Store

from . import apps
from .traffic import SESSION_KEY, Visits, message

__all__ = ["AUDIENCE", "LIVE", "Claims", "Namespace", "Record", "Store", "StoreUnavailable"]

SECRET: Final = "a-secret-for-benchmarks-0123456789-abcdefgh"
RING: Final = KeyRing([SECRET])
WEEK: Final = 7 * 24 * 3600  # seconds, the default lifetime
MODES: Final[dict[str, dict[str, Any]]] = {
    "no token cache": {"token_cache": 0},
    "idle_timeout": {"idle_timeout": 3600},
    "tracked": {"tracked": True},
}
"""The options of the middleware that change what a request costs."""


def wrap(app: ASGIApp, mode: str = "", **options: Any) -> MCPSessionMiddleware:
    """Put the middleware around an application, in a mode or as it is by default; options may be added."""
    return MCPSessionMiddleware(app, keys=RING, **grouped(**{**MODES.get(mode, {}), **options}))


def caching(app: ASGIApp, entries: int) -> MCPSessionMiddleware:
    """Put the middleware around an application, with a cache of so many verified tokens."""
    return wrap(app, token_cache=entries)


def store(url: str, timeout: float = 60) -> Store:
    """Return the store that a URL names."""
    return make(url, clock=time.time, timeout=timeout)


def claims(number: int, lifetime: int = WEEK) -> Claims:
    """Return the claims of a session whose name is a number."""
    now = int(time.time())
    return Claims(
        kind="session",
        issuer="mcp-sessions",
        audience="mcp-sessions",
        jti=f"{number:022d}",
        issued_at=now,
        expires_at=now + lifetime,
    )


async def revoke(store: Store, session: Claims) -> None:
    """Revoke a session, as `sessions/delete` does."""
    await store.revoke(Record.of(session), reason="deleted", lease=60)


async def created(app: ASGIApp, *, modern: bool = True) -> dict[str, str]:
    """Create a session; return its metadata as a client sends it back."""
    body = message("sessions/create", {}, modern=modern)
    answer = await Visits.of(app, body, method="sessions/create", modern=modern).answer()
    return _kept(json.loads(answer.body)["result"]["session"])


async def used(app: ASGIApp, session: dict[str, str]) -> dict[str, str]:
    """Call a tool in a session; return what the client holds of the session afterwards."""
    answer = await Visits.of(app, message(session=session)).answer()
    return _kept({**session, **json.loads(answer.body)["result"]["_meta"][SESSION_KEY]})


def _kept(metadata: dict[str, str]) -> dict[str, str]:
    return {name: metadata[name] for name in ("sessionId", "state") if name in metadata}


async def unnamed() -> dict[str, str]:
    """Create a session of a client that does not say what it is."""
    return await created(wrap(apps.trivial), modern=False)


async def ids(number: int) -> list[str]:
    """Create so many sessions; return their ids, all of one length."""
    app = wrap(apps.trivial)
    return [(await created(app))["sessionId"] for _ in range(number)]


def forged(token: str) -> str:
    """Return a session id with another signature."""
    signed, _, signature = token.rpartition(".")
    return f"{signed}.{'B' if signature.startswith('A') else 'A'}{signature[1:]}"
