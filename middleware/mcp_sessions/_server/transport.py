"""Transport sessions: requests without a body that name one of ours, resumed streams, and the bridge.

A stateless server would keep a GET open and never write to it, so the client learns that there is no stream. A client
that resumes a stream (`Last-Event-ID`) is not served the results of a session that has ended. Across the bridge the
wrapped server never sees our ids, and its client never sees its own.
Source: MCP 2025-11-25, Streamable HTTP, "Session Management" and "Resumability and Redelivery".
"""

from __future__ import annotations

from functools import partial
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from .._protocol import draft, rewrite
from .._protocol.headers import SESSION_HEADER, edit
from .._session.claims import FIELD, TRANSPORT
from .._session.events import RequestRefused
from ..errors import Refusal, SessionExpired, SessionNotFound, StoreUnavailable
from ..stores.base import LIVE
from .answers import Answer, may_delete, refuse_bodyless, refuse_unread, send_refusal, send_status
from .body import Replay
from .context import Bridged, BridgedInitialize, RequestContext
from .response import ResponseFilter, StreamGuard
from .rewrites import TranslateIds, passing_filter
from .sessions import ActiveSession, open_transport, refusal_of
from .streams import Origin

LAST_EVENT_ID: Final = b"last-event-id"
_METHOD_NOT_ALLOWED: Final = 405
_GONE: Final = 404  # what a server answers for a stream or a session that it does not have
_OF_A_BODY: Final = frozenset({b"content-length", b"content-type", b"transfer-encoding", b"accept-encoding"})


async def handle_get_or_delete(ctx: RequestContext) -> None:
    """Answer a request without a body whose header names a session of ours."""
    runtime, header, method = ctx.runtime, ctx.headers.session_id or "", ctx.scope["method"]
    rules, session, kind = runtime.rules, None, TRANSPORT
    try:
        # Where the header may mirror a session of SEP-1364's, which a message deletes, a GET has the answer of all.
        if method == "DELETE" or rules.sep1364 is None:
            draft.names_transport(header, None, rules.reads_transport)
        elif rules.kind_of(header) == FIELD:
            kind = FIELD
        if method == "DELETE" or (method == "GET" and runtime.bridges):
            session = await open_transport(ctx, header, kind=kind)
    except Refusal as refusal:
        await refuse_bodyless(ctx, refusal)
        return
    if session is not None and method == "DELETE":
        await _delete(ctx, session)
    elif session is not None and isinstance(ctx.bridge, Bridged):
        server_id = ctx.bridge.server_id
        known = runtime.streams.origin_of(server_id, ctx.headers.first(LAST_EVENT_ID))
        await _serve_stream(ctx, known or Origin(session.claims, None, "GET"), server_id)
    else:
        await send_status(ctx.send, _METHOD_NOT_ALLOWED, (b"allow", b"POST, DELETE"))


async def handle_other(ctx: RequestContext) -> None:
    """Forward a request that names no session of ours, unless it resumes a stream of one."""
    transport = ctx.headers.first(SESSION_HEADER)
    origin = ctx.runtime.streams.origin_of(transport, ctx.headers.first(LAST_EVENT_ID))
    if origin is None or ctx.scope["method"] != "GET":
        await ctx.app(ctx.scope, ctx.receive, passing_filter(ctx) or ctx.send)
    else:
        await _serve_stream(ctx, origin, transport)


async def _delete(ctx: RequestContext, session: ActiveSession) -> None:
    """End a transport session whose client is done with it."""
    # Behind the bridge, a server that has forgotten its own has nothing left to end.
    if await may_delete(ctx, frozenset() if ctx.bridge is None else frozenset({_GONE})):
        try:
            await session.session.end("deleted")
        except StoreUnavailable as refusal:
            await refuse_unread(ctx, refusal)
        else:
            await send_status(ctx.send, 200)


async def _serve_stream(ctx: RequestContext, origin: Origin, transport: str | None) -> None:
    """Serve the stream that carries the answer to a request, new or resumed, while the request's session lives."""
    runtime, claims = ctx.runtime, origin.claims
    try:
        status = await runtime.status(claims)
        if status is not LIVE:
            raise refusal_of(status, claims)
        if not runtime.clock() < claims.expires_at:
            raise SessionExpired(ref=claims.ref)
    except (StoreUnavailable, SessionNotFound) as refusal:
        http_status = _GONE if isinstance(refusal, SessionNotFound) else refusal.http_status
        await send_refusal(ctx.send, refusal, status=http_status, code=_record(ctx, origin, refusal))
        return
    guard = StreamGuard(origin, transport, runtime.streams, partial(_cut_body, ctx, origin), lambda: False, False)
    rewrites = (TranslateIds(ctx=ctx),) if runtime.bridges else ()
    response = ResponseFilter(ctx.send, b"", None, rewrites, lambda: guard, runtime.limits.event_bytes)
    try:
        await ctx.app(ctx.scope, ctx.receive, response)
    finally:
        response.close()


def _cut_body(ctx: RequestContext, origin: Origin, refusal: Refusal) -> bytes:
    if origin.id is None:
        return b""
    return rewrite.error(origin.id, _record(ctx, origin, refusal), refusal.client_message)


def _record(ctx: RequestContext, origin: Origin, refusal: Refusal) -> int:
    code = ctx.runtime.code(refusal)
    ctx.runtime.emit(RequestRefused(refusal.reason, code, origin.label, origin.claims.ref))
    return code


async def cross(ctx: RequestContext, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Call the wrapped server, with its own id in place of ours; responses are translated where they leave.

    A live session of ours has the server's id sealed inside, and a successful `initialize` begins one. Any other
    request reaches the server without an id, and its client sees none. Two clients never share a transport session,
    since each of ours is minted for one of the server's.
    """
    bridge = ctx.bridge
    if isinstance(bridge, Bridged):
        scope = {**scope, "headers": [*scope["headers"], (SESSION_HEADER, bridge.server_id.encode("ascii"))]}
    await app(scope, receive, send)
    if isinstance(bridge, BridgedInitialize) and bridge.orphaned_id is not None:
        # No client will ever use it, so it ends; the server's answer is dropped.
        headers = edit(scope["headers"], drop=_OF_A_BODY, add=[(SESSION_HEADER, bridge.orphaned_id.encode("ascii"))])
        delete = {**scope, "mcp_session": None, "method": "DELETE", "headers": headers}
        await app(delete, Replay(b"", receive), Answer(b""))
