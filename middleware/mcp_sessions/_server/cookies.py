"""Sessions by cookie: taken from a request, set by the answer to `server/discover`, renewed where one is dead.

Two clients that share a cookie jar would share a session. The second one begins with a live cookie, which it cannot
have by itself, so both are left without: their conversations never merge.
"""

from __future__ import annotations

import logging
from typing import Final
from urllib.parse import quote

from starlette.types import Scope

from .._errors import Refusal, SessionNotFound, StoreUnavailable
from .._protocol import cookies
from .._protocol.cookies import SHARED_JAR
from .._protocol.draft import SessionMetadata
from .._protocol.headers import Header
from .._protocol.jsonrpc import Message
from .._session.claims import COOKIE
from .._session.events import RequestRefused
from .context import RequestContext
from .minting import initialize_session
from .sessions import open_session

_UNESCAPED: Final = "/:@!$&'()*+,=~"  # in a path, but for the semicolon, which ends an attribute of a cookie
_log: Final = logging.getLogger("mcp_sessions")


def take_cookie(ctx: RequestContext, name: bytes) -> None:
    """Take our cookie from what the application sees; it counts in the modern era, and not from other sites."""
    value, ctx.scope["headers"] = cookies.take(ctx.scope["headers"], name, secure=_is_secure(ctx.scope))
    if may_have_cookie(ctx):
        ctx.headers.cookie = value


def may_have_cookie(ctx: RequestContext) -> bool:
    """Whether a cookie counts in a request."""
    has_cookies = ctx.runtime.cookie_name is not None and ctx.headers.is_modern
    return has_cookies and not cookies.is_cross_site(ctx.headers)


async def first_cookie(ctx: RequestContext, message: Message) -> Header | None:
    """Return the cookie that the answer to `server/discover` sets, or None where its client keeps what it has."""
    held, shares = ctx.headers.cookie, ctx.runtime.shares_cookies
    if held == SHARED_JAR and not shares:
        return None
    if held is None or not await _is_live(ctx, held):
        return await new_cookie(ctx, message)
    if shares:
        return None
    _log.warning(
        "two MCP clients share one cookie jar, so neither has a session: give each an HTTP client of its own, wrap "
        'them with with_sessions, or set TransportSessions(cookie="shared") where they are one conversation'
    )
    return _header(ctx, SHARED_JAR)


async def new_cookie(ctx: RequestContext, message: Message) -> Header | None:
    """Return a cookie for a new session, or None where the caller gets none."""
    try:
        session = await initialize_session(ctx, message, COOKIE)
    except Refusal as refusal:
        ctx.runtime.emit(RequestRefused(refusal.reason, ctx.runtime.code(refusal), message.label))
        return None
    return _header(ctx, session.token)


async def _is_live(ctx: RequestContext, held: str) -> bool:
    """Whether a cookie names a live session of the caller, as far as is known."""
    try:
        await open_session(SessionMetadata(held), ctx.runtime, ctx.runtime.principal(ctx.scope), kind=COOKIE)
    except SessionNotFound:
        return False
    except StoreUnavailable:  # to take it for dead could give one client the session of another
        return True
    return True


def _header(ctx: RequestContext, value: str) -> Header:
    name = ctx.runtime.cookie_name
    assert name is not None
    return cookies.set_cookie(name, value, path=_path(ctx.scope), secure=_is_secure(ctx.scope))


def _path(scope: Scope) -> str:
    """Return the path of the request as its client writes it, without a slash at the end."""
    path, root = scope["path"], scope.get("root_path", "")
    whole: str = path if path.startswith(root) else root + path  # a proxy may have taken the root path off
    return quote(whole.rstrip("/") or "/", safe=_UNESCAPED)


def _is_secure(scope: Scope) -> bool:
    return scope.get("scheme") == "https"
