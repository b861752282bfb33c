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
from .._protocol.headers import LAST_EVENT_ID, SESSION_HEADER
from .._session.claims import COOKIE, FIELD, SESSION, TRANSPORT, Claims, Kind
from .._tokens import seal
from .._tokens.event_ids import EventId
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
from .event_ids import signing_send
from .response import Response, close_session
from .resumption import StreamRequest, refusal_for_status
from .rewrites import MakePrivate
from .sessions import RECHECK_AFTER, open_transport, refused_claims

_log: Final = logging.getLogger("mcp_sessions")
_METHOD_NOT_ALLOWED: Final = 405
MIRRORED: Final = frozenset({SESSION, FIELD})  # sessions that messages name, and that their headers may repeat
_GONE: Final = 404  # what a server answers for a stream or a session that it does not have


async def handle_unread(ctx: RequestContext) -> None:
    """Handle a request whose body is not read: no POST, or one that cannot be MCP."""
    headers, runtime = ctx.headers, ctx.runtime
    if headers.session_id is not None:
        await _answer(ctx, headers.session_id)
        return
    if ctx.server_id is not None and not runtime.transport.bridges and runtime.telemetry.is_recording():
        runtime.telemetry.recorder().name_request(ctx.server_id, ctx.scope)
    if headers.event_id is not None:
        await _resume(ctx, headers.event_id, None)
    else:
        await _pass(ctx, signing_send(ctx))


async def _answer(ctx: RequestContext, header: str) -> None:
    """Answer a request without a body whose header names a session of ours."""
    runtime, rules, method, event_id = ctx.runtime, ctx.runtime.rules, ctx.scope["method"], ctx.headers.event_id
    session, kind = None, TRANSPORT
    try:
        # Where the header may mirror a session of SEP-1364's, which a message deletes, a GET has the answer of all.
        if event_id is not None and (mirrored := rules.kind_of(header)) in MIRRORED:
            kind = mirrored
        elif method == "DELETE" or rules.sep1364 is None:
            draft.names_transport(header, None, rules.reads_transport)
        elif rules.kind_of(header) == FIELD:
            kind = FIELD
        if method == "DELETE" or event_id is not None or (method == "GET" and runtime.transport.bridges):
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
    elif session is not None and event_id is not None:
        await _resume(ctx, event_id, session.claims)
    elif session is not None and isinstance(ctx.bridge, Bridged):
        await _listen(ctx, StreamRequest(session.claims, None, "GET", ctx.bridge.server_id))
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
    # The server ends its own calls when it is asked, before ours end with an error.
    with ctx.runtime.streams.ending(session.claims.ref):
        # Behind the bridge, a server that has forgotten its own has nothing left to end.
        if not await may_delete(ctx, frozenset() if ctx.bridge is None else frozenset({_GONE})):
            return
        try:
            await session.end("deleted")
        except StoreUnavailable as refusal:
            await send_refusal_without_id(ctx, refusal)
        else:
            await send_status(ctx.send, 200)


async def _resume(ctx: RequestContext, event_id: str, named: Claims | None) -> None:
    """Resume the stream of an event, for a request that names a live session of ours in its header, or None.

    Servers find an event by its id alone, so each of these ids must be authentic, and must belong to the caller, to the
    transport session and to the session of the request.
    """
    runtime = ctx.runtime
    try:
        event, is_same_transport = runtime.event_ids.verify(runtime.ring(runtime.clock()), event_id, ctx.server_id)
    except SessionNotFound as refusal:
        await _refuse_event(ctx, refusal, None)
        return
    claims = runtime.event_ids.claims(event)
    if not (is_same_transport and _is_callers(ctx, event) and _may_resume(ctx, claims, named)):
        await _refuse_event(ctx, SessionNotFound("event_foreign", ref=None if claims is None else claims.ref), claims)
        return
    request = None
    if claims is not None:
        request = runtime.calls.find(event.call)
        if request is None:  # another process runs the call, or has run it
            rewrites = (MakePrivate(),)
            request = StreamRequest(claims, event.request_id, "GET", ctx.server_id, rewrites=rewrites, call=event.call)
        request.answered = request.answered or event.answered
    if not event.value:  # the middleware ended the stream
        await send_status(ctx.send, _METHOD_NOT_ALLOWED, (b"allow", b"POST"))
        return
    ctx.edit_headers(set(), (LAST_EVENT_ID, event.value.strip(b" \t")))  # as a server reads a header
    if request is None:
        await _pass(ctx, signing_send(ctx))
    else:
        await _listen(ctx, request)


async def _refuse_event(ctx: RequestContext, refusal: SessionNotFound, claims: Claims | None) -> None:
    refusal.http_status = _GONE
    await send_refusal_without_id(ctx, refusal, claims, "GET")


def _is_callers(ctx: RequestContext, event: EventId) -> bool:
    principal = ctx.principal
    if principal is None:
        return event.subject is None
    return event.subject in ctx.runtime.ring(ctx.runtime.clock()).subjects(principal)


def _may_resume(ctx: RequestContext, claims: Claims | None, named: Claims | None) -> bool:
    """Whether a request is in the session of an event, as far as its client can say so without a body.

    Clients of the draft and of SEP-1364 need not name it, since they hold an id that was signed for it. The wrapped
    server's own transport session is checked before, and a principal's session is found by the principal alone.
    """
    if claims is None:
        return True
    if claims.kind == COOKIE:
        return ctx.headers.cookie is not None and _cookie_ref(ctx, ctx.headers.cookie) == claims.ref
    if named is None:
        return claims.kind != TRANSPORT
    return named.ref == claims.ref or (ctx.bridge is not None and claims.kind != TRANSPORT)


def _cookie_ref(ctx: RequestContext, cookie: str) -> str | None:
    claims = _verified_claims(ctx, cookie, COOKIE)
    return None if claims is None else claims.ref


async def _listen(ctx: RequestContext, request: StreamRequest) -> None:
    """Serve the stream of a request, which may have ended by now, while its session lives."""
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
    ctx.demand_whole_answer()
    recheck_at = ctx.runtime.clock() + RECHECK_AFTER
    response = Response(
        ctx, ctx.send, request.id or b"", request=request, recheck_at=recheck_at, rewrites=request.rewrites
    )
    response.enlist()
    try:
        await _pass(ctx, response.send)
        await response.finish()
    finally:
        close_session(response, None)


async def _pass(ctx: RequestContext, send: Send) -> None:
    """Call the application for a request outside of sessions."""
    with without_session(ctx.scope):
        await ctx.app(ctx.scope, ctx.receive, send)


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
