"""Transport sessions: requests without a body that name one of ours, resumed streams, and the bridge.

A stateless server would keep a GET open and never write to it, so the client learns that there is no stream. A client
that resumes a stream (`Last-Event-ID`) is served neither the results of a session that has ended, nor a stream of
another transport session or principal. Across the bridge the wrapped server never sees our ids, and its client never
sees its own.
Source: MCP 2025-11-25, Streamable HTTP, "Session Management" and "Resumability and Redelivery".
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from .._errors import Refusal, SessionExpired, SessionNotFound, StoreUnavailable
from .._protocol import draft, rewrite
from .._protocol.headers import SESSION_HEADER, edit
from .._session.claims import FIELD, TRANSPORT, Claims, Kind
from .._session.events import RequestRefused
from ..stores._base import LIVE
from .answers import Answer, may_delete, refuse_bodyless, refuse_request, refuse_unread, send_refusal, send_status
from .body import Replay
from .context import Bridged, BridgedInitialize, Given, RequestContext
from .placement import LAST_EVENT_ID
from .response import ResponseFilter
from .rewrites import TranslateIds, passing_filter
from .sessions import ActiveSession, open_transport, refusal_of, refused_claims
from .streams import Origin, StreamGuard

_METHOD_NOT_ALLOWED: Final = 405
_GONE: Final = 404  # what a server answers for a stream or a session that it does not have
_OF_A_BODY: Final = frozenset({b"content-length", b"content-type", b"transfer-encoding", b"accept-encoding"})


async def handle_get_or_delete(ctx: RequestContext) -> None:
    """Answer a request without a body whose header names a session of ours."""
    runtime, header, method = ctx.runtime, ctx.headers.session_id or "", ctx.scope["method"]
    rules, session, kind, claims = runtime.rules, None, TRANSPORT, None
    try:
        # Where the header may mirror a session of SEP-1364's, which a message deletes, a GET has the answer of all.
        if method == "DELETE" or rules.sep1364 is None:
            draft.names_transport(header, None, rules.reads_transport)
        elif rules.kind_of(header) == FIELD:
            kind = FIELD
        if method == "DELETE" or (method == "GET" and runtime.bridges):
            session = await open_transport(ctx, header, kind=kind)
            claims = session.claims
        else:
            claims = _verified_claims(ctx, header, kind)
    except Refusal as refusal:
        await refuse_bodyless(ctx, refusal)
        return
    named = runtime.telemetry().name_request(claims, ctx.scope) if claims and runtime.tells() else nullcontext()
    if session is not None and method == "DELETE":
        with named:
            await _delete(ctx, session)
    elif session is not None and isinstance(ctx.bridge, Bridged):
        await _serve_stream(ctx, ctx.bridge.server_id, Origin(session.claims, None, "GET"))
    else:
        await send_status(ctx.send, _METHOD_NOT_ALLOWED, (b"allow", b"POST, DELETE"))


async def handle_other(ctx: RequestContext) -> None:
    """Forward a request that names no session of ours, unless it resumes a stream of one."""
    if ctx.server_id is not None and not ctx.runtime.bridges and ctx.runtime.tells():
        ctx.runtime.telemetry().name_request(ctx.server_id, ctx.scope)
    if ctx.scope["method"] == "GET" and ctx.runtime.events.is_known(ctx.headers.first(LAST_EVENT_ID)):
        await _serve_stream(ctx, ctx.headers.first(SESSION_HEADER), None)
    else:
        await ctx.app(ctx.scope, ctx.receive, passing_filter(ctx) or ctx.send)


def _verified_claims(ctx: RequestContext, session_id: str, kind: Kind) -> Claims | None:
    """Return the claims of a valid session id, or report a stolen or forged one; every id gets the same answer."""
    runtime, now, principal = ctx.runtime, ctx.runtime.clock(), ctx.runtime.principal(ctx.scope)
    try:
        return runtime.tokens.verify(runtime.ring(now), session_id, now=now, principal=principal, kind=kind)
    except SessionNotFound as refusal:
        refuse_request(ctx, refusal, refused_claims(ctx, refusal, session_id), ctx.scope["method"])
        return None


async def _delete(ctx: RequestContext, session: ActiveSession) -> None:
    # Behind the bridge, a server that has forgotten its own has nothing left to end.
    if await may_delete(ctx, frozenset() if ctx.bridge is None else frozenset({_GONE})):
        ctx.runtime.streams.leave(session.claims.ref)
        try:
            await session.session.end("deleted")
        except StoreUnavailable as refusal:
            await refuse_unread(ctx, refusal)
        else:
            await send_status(ctx.send, 200)


async def _serve_stream(ctx: RequestContext, transport: str | None, listening: Origin | None = None) -> None:
    """Serve the stream of a request, resumed, or one for `listening`, while the session lives that it belongs to.

    An event of another transport session or principal is refused: servers find events by their id alone.
    """
    runtime, event_id = ctx.runtime, ctx.headers.first(LAST_EVENT_ID)
    origin = runtime.events.origin_of(transport, event_id)
    if origin is None and not runtime.events.is_known(event_id):
        origin = listening
    if origin is None or not _is_owned(ctx, origin.claims):
        claims = None if origin is None else origin.claims
        foreign = SessionNotFound("event_foreign", ref=None if claims is None else claims.ref)
        await _refuse_stream(ctx, foreign, "GET", claims)
        return
    kept = origin.resumable
    # A call that ended its own session gets its answer, once.
    ended_itself = kept is not None and kept.session.ended_by_own_request and not origin.is_settled
    try:
        if not ended_itself:
            await _check_live(ctx, origin.claims)
    except (StoreUnavailable, SessionNotFound) as refusal:
        if origin.is_settled and isinstance(refusal, SessionNotFound):
            await send_status(ctx.send, _METHOD_NOT_ALLOWED, (b"allow", b"POST"))  # its client has its answer
        else:
            await _refuse_stream(ctx, refusal, origin.label, origin.claims)
        return
    refused = partial(_cut_body, ctx, origin)
    guard = StreamGuard(origin, transport, runtime.streams, runtime.events, refused, lambda: ended_itself, False)
    rewrites, limit = (TranslateIds(ctx=ctx),) if runtime.bridges else (), runtime.limits.event_bytes
    response = ResponseFilter(ctx.send, origin.id or b"", None, rewrites, lambda: guard, limit)
    if kept is not None:
        response.echoed, response.rewrites = kept.echoed, (*rewrites, *kept.rewrites)
    try:
        await ctx.app(ctx.scope, ctx.receive, response)
    finally:
        response.close()
        if kept is not None and origin.is_settled_by(response.last_text):
            kept.session.shut()


async def _check_live(ctx: RequestContext, claims: Claims) -> None:
    status = await ctx.runtime.status(claims)
    if status is not LIVE:
        raise refusal_of(status, claims)
    if not ctx.runtime.clock() < claims.expires_at:
        raise SessionExpired(ref=claims.ref)


def _is_owned(ctx: RequestContext, claims: Claims) -> bool:
    runtime, principal = ctx.runtime, ctx.runtime.principal(ctx.scope)
    if principal is None or claims.subject is None:
        return principal is None and claims.subject is None
    return claims.subject in runtime.ring(runtime.clock()).subjects(principal)


async def _refuse_stream(ctx: RequestContext, refusal: Refusal, label: str, claims: Claims | None) -> None:
    code = refuse_request(ctx, refusal, claims, label)
    http_status = _GONE if isinstance(refusal, SessionNotFound) else refusal.http_status
    await send_refusal(ctx.send, refusal, status=http_status, code=code)


def _cut_body(ctx: RequestContext, origin: Origin, refusal: Refusal) -> bytes:
    if origin.id is None:
        return b""
    code = refusal.code
    ctx.runtime.emit(RequestRefused(refusal.reason, code, origin.label, refusal.ref))
    return rewrite.error(origin.id, code, refusal.client_message)


def in_context(body: bytes | None, receive: Receive, given: Given) -> RequestContext:
    """Return the context of a request, in which it crosses the bridge where there is one."""
    ctx = RequestContext(body, receive, *given)
    if ctx.runtime.bridges:
        ctx.app = partial(cross, ctx, ctx.app)
    return ctx


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
