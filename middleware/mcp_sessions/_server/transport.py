"""Transport sessions: requests without a body that name one of ours, resumed streams, and the bridge.

A stateless server would keep a GET open and never write to it, so the client learns that there is no stream. A client
that resumes a stream (`Last-Event-ID`) is served neither the results of a session that has ended, nor a stream of
another transport session or principal. Across the bridge the wrapped server never sees our ids, and its client never
sees its own.
Source: MCP 2025-11-25, Streamable HTTP, "Session Management" and "Resumability and Redelivery".
"""

from __future__ import annotations

import logging
from contextlib import nullcontext
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.types import Message as ASGIMessage

from .._errors import Refusal, SessionExpired, SessionNotFound, StoreUnavailable
from .._protocol import draft
from .._protocol.headers import SESSION_HEADER
from .._session.claims import FIELD, TRANSPORT, Claims, Kind
from .._tokens import seal
from ..stores._base import LIVE
from .active import ActiveSession, Bridged
from .answers import (
    end_upstream,
    may_delete,
    record_unparsed_refusal,
    refuse_unread,
    send_refusal_without_id,
    send_status,
)
from .context import BridgedInitialize, RequestContext, session_header_values
from .current import without_session
from .response import Response, close_session
from .resumption import StreamRequest
from .routing import LAST_EVENT_ID
from .sessions import open_transport, refusal_for_status, refused_claims

_log: Final = logging.getLogger("mcp_sessions")
_METHOD_NOT_ALLOWED: Final = 405
_GONE: Final = 404  # what a server answers for a stream or a session that it does not have


async def handle_unread(ctx: RequestContext) -> None:
    """Handle a request whose body is not read: no POST, or one that cannot be MCP."""
    if ctx.headers.session_id is not None:
        await _answer(ctx, ctx.headers.session_id)
        return
    runtime, event_id = ctx.runtime, ctx.headers.first(LAST_EVENT_ID)
    if ctx.server_id is not None and not runtime.transport.bridges and runtime.telemetry.is_recording():
        runtime.telemetry.recorder().name_request(ctx.server_id, ctx.scope)
    if ctx.scope["method"] == "GET" and runtime.events.is_known(event_id):
        await _serve_stream(ctx, None)
    else:
        with without_session(ctx.scope):
            await ctx.app(ctx.scope, ctx.receive, ctx.send)


async def _answer(ctx: RequestContext, header: str) -> None:
    """Answer a request without a body whose header names a session of ours."""
    runtime, rules, method = ctx.runtime, ctx.runtime.rules, ctx.scope["method"]
    session, kind = None, TRANSPORT
    try:
        # Where the header may mirror a session of SEP-1364's, which a message deletes, a GET has the answer of all.
        if method == "DELETE" or rules.sep1364 is None:
            draft.names_transport(header, None, rules.reads_transport)
        elif rules.kind_of(header) == FIELD:
            kind = FIELD
        if method == "DELETE" or (method == "GET" and runtime.transport.bridges):
            session = await open_transport(ctx, header, kind=kind)
    except Refusal as refusal:
        await refuse_unread(ctx, refusal)
        return
    claims = _verified_claims(ctx, header, kind) if session is None else session.claims
    is_recording = runtime.telemetry.is_recording()
    naming = runtime.telemetry.recorder().name_request(claims, ctx.scope) if claims and is_recording else nullcontext()
    if session is not None and method == "DELETE":
        with naming:
            await _delete(ctx, session)
    elif session is not None and isinstance(ctx.bridge, Bridged):
        await _serve_stream(ctx, StreamRequest(session.claims, None, "GET", ctx.bridge.server_id))
    else:
        await send_status(ctx.send, _METHOD_NOT_ALLOWED, (b"allow", b"POST, DELETE"))


def _verified_claims(ctx: RequestContext, session_id: str, kind: Kind) -> Claims | None:
    """Return the claims of a valid session id, or report a stolen or forged one; every id gets the same answer."""
    runtime, now = ctx.runtime, ctx.runtime.clock()
    try:
        return runtime.tokens.verify(runtime.ring(now), session_id, now=now, principal=ctx.principal, kind=kind).claims
    except SessionNotFound as refusal:
        record_unparsed_refusal(ctx, refusal, refused_claims(ctx, refusal, session_id), ctx.scope["method"])
        return None


async def _delete(ctx: RequestContext, session: ActiveSession) -> None:
    # Behind the bridge, a server that has forgotten its own has nothing left to end.
    if await may_delete(ctx, frozenset() if ctx.bridge is None else frozenset({_GONE})):
        ctx.runtime.streams.leave(session.claims.ref)
        try:
            await session.end("deleted")
        except StoreUnavailable as refusal:
            await send_refusal_without_id(ctx, refusal)
        else:
            await send_status(ctx.send, 200)


async def _serve_stream(ctx: RequestContext, listening: StreamRequest | None) -> None:
    """Serve the stream of a request, resumed, or one for `listening`, while the session lives that it belongs to.

    An event of another transport session or principal is refused: servers find events by their id alone.
    """
    runtime, event_id = ctx.runtime, ctx.headers.first(LAST_EVENT_ID)
    request = runtime.events.request_of(ctx.server_id, event_id)
    if request is None and not runtime.events.is_known(event_id):
        request = listening
    principal = ctx.principal
    owners = [None] if principal is None else runtime.ring(runtime.clock()).subjects(principal)
    if request is None or request.claims.subject not in owners:
        claims = None if request is None else request.claims
        foreign = SessionNotFound("event_foreign", ref=None if claims is None else claims.ref, http_status=_GONE)
        await send_refusal_without_id(ctx, foreign, claims, "GET")
        return
    try:
        if request.answered or not request.ended_its_session:  # a call that ended it gets its answer, once
            await _check_live(ctx, request.claims)
    except StoreUnavailable as refusal:
        await send_refusal_without_id(ctx, refusal, request.claims, request.label)
        return
    except SessionNotFound as refusal:
        refusal.http_status = _GONE
        if request.answered:
            await send_status(ctx.send, _METHOD_NOT_ALLOWED, (b"allow", b"POST"))  # its client has its answer
        else:
            await send_refusal_without_id(ctx, refusal, request.claims, request.label)
        return
    response = Response(ctx, ctx.send, request.id or b"", request.rewrites, request=request)
    try:
        with without_session(ctx.scope):
            await ctx.app(ctx.scope, ctx.receive, response.send)
    finally:
        close_session(response, None)


async def _check_live(ctx: RequestContext, claims: Claims) -> None:
    status = await ctx.runtime.status(claims)
    if status is not LIVE:
        raise refusal_for_status(status, claims)
    if not ctx.runtime.clock() < claims.expires_at:
        raise SessionExpired(ref=claims.ref)


async def call_upstream(ctx: RequestContext, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Call the wrapped server with its own id in place of ours, and let its response leave with ours in place of its.

    A live session of ours has the server's id sealed inside, and a successful `initialize` begins one. Any other
    request reaches the server without an id, and its client sees none. Two clients never share a transport session,
    since each of ours is minted for one of the server's.
    """
    bridge = ctx.bridge
    if isinstance(bridge, Bridged):
        scope = {**scope, "headers": [*scope["headers"], (SESSION_HEADER, bridge.server_id.encode("ascii"))]}

    async def translate(event: ASGIMessage) -> None:
        await send(_translated(bridge, event) if event["type"] == "http.response.start" else event)

    await app(scope, receive, translate)
    if isinstance(bridge, BridgedInitialize) and bridge.is_orphaned and bridge.server_id:
        await end_upstream(app, scope, receive, bridge.server_id)  # no client will ever use it


def _translated(bridge: Bridged | BridgedInitialize | None, start: ASGIMessage) -> ASGIMessage:
    """Return the start of a response with our id or none in place of the server's, which an `initialize` keeps."""
    ids = session_header_values(start)
    headers = [(name, value) for name, value in start.get("headers", ()) if name.lower() != SESSION_HEADER]
    if isinstance(bridge, Bridged) and ids == [bridge.server_id]:
        headers.append((SESSION_HEADER, bridge.client_id.encode("ascii")))
    elif isinstance(bridge, BridgedInitialize) and len(ids) == 1:
        if seal.can_carry(ids[0]):
            bridge.server_id = ids[0]
        else:
            _log.error("the server's transport id is not visible ASCII, or too long, so its client cannot get it")
    return {**start, "headers": headers}
