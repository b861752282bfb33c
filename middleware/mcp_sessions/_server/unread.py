"""Requests without a body: DELETE, which ends a session, and GET, which listens or resumes a stream.

A stateless server would keep a GET open and never write to it, so a client with one of our ids learns that there is no
stream. A client that resumes a stream (`Last-Event-ID`) is served neither the results of a session that has ended, nor
a stream of another session, transport session or caller.
Source: MCP 2025-11-25, Streamable HTTP, "Session Management" and "Resumability and Redelivery".
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Final

from starlette.types import Send

from .._dialects.base import Credential, Dialect, Dialects
from .._errors import Refusal, SessionExpired, SessionNotFound, StoreUnavailable
from .._protocol import rewrite
from .._protocol.headers import LAST_EVENT_ID
from .._session.claims import Claims
from .._session.session import Session
from .._tokens.event_ids import EventId
from ..stores._base import LIVE
from .answers import (
    may_delete,
    may_listen,
    record_unparsed_refusal,
    refuse_unread,
    send_event,
    send_refusal_without_id,
    send_status,
)
from .changes import MakePrivate
from .context import Request, error_data
from .current import without_session
from .decide import find_credentials
from .event_ids import signing_send
from .response import Response, close_session
from .resumption import Call, refusal_for_status
from .sessions import RECHECK_AFTER, refused_claims

_METHOD_NOT_ALLOWED: Final = 405
_GONE: Final = 404  # what a server answers for a stream or a session that it does not have


async def handle_unread(request: Request, dialects: Dialects) -> None:
    """Handle a request whose body is not read: no POST, or one that cannot be MCP."""
    headers, runtime = request.headers, request.runtime
    if headers.session_id is not None:
        await _answer(request, dialects)
        return
    if request.server_id is not None and runtime.telemetry.is_recording():
        runtime.telemetry.recorder().name_request(request.server_id, request.scope)
    if headers.event_id is not None:
        await _resume(request, None, dialects)
    else:
        await _pass(request, signing_send(request))


# Error reporters print the variables of all frames around an error of the server, also those of errors that were being
# handled. So no variable of these has an id, and the server is called out of `except`.


async def _answer(request: Request, dialects: Dialects) -> None:
    """Answer a request without a body whose header names a session of ours."""
    runtime, method, credential, session, refused = request.runtime, request.scope["method"], None, None, None
    resumes = request.headers.event_id is not None
    try:
        credential, *_ = find_credentials(request, dialects)
        if method == "DELETE" or resumes or (method == "GET" and any(one.serves_streams for one in dialects.all)):
            session = await credential.dialect.open(request, credential, fail_open=False)
    except Refusal as refusal:
        if isinstance(refusal, SessionNotFound):
            refusal.http_status = _GONE
        refused = refusal.with_traceback(None)
    if refused is not None:
        await refuse_unread(request, refused)
        return
    assert credential is not None
    claims = _verified_claims(request, credential) if session is None else session._claims
    is_recording = runtime.telemetry.is_recording()
    naming: AbstractContextManager[None] = nullcontext()
    if claims is not None and is_recording:
        naming = runtime.telemetry.recorder().name_request(claims, request.scope)
    if session is not None and method == "DELETE":
        with naming:
            await _delete(request, session)
    elif session is not None and resumes:
        await _resume(request, session._claims, dialects)
    elif session is not None and request.upstream_id is not None:
        await _listen(request, Call(session._claims, None, "GET", request.upstream_id))
    else:
        await send_status(request.send, _METHOD_NOT_ALLOWED, (b"allow", b"POST, DELETE"))


def _verified_claims(request: Request, credential: Credential) -> Claims | None:
    """Return the claims of a valid session id, or report a stolen or forged one; every id gets the same answer."""
    runtime, now = request.runtime, request.runtime.clock()
    try:
        return runtime.tokens.verify(
            runtime.ring(now), credential.id, now=now, principal=request.principal, kind=credential.kind
        ).claims
    except SessionNotFound as refusal:
        claims = refused_claims(request, refusal, credential.id)
        record_unparsed_refusal(request, refusal, claims, request.scope["method"])
        return None


async def _delete(request: Request, session: Session) -> None:
    # When the wrapped server is asked, it may end its calls itself, before the middleware ends them with an error.
    with request.runtime.streams.ending(session.ref):
        # If the wrapped server no longer has its own session, it has nothing to end.
        if not await may_delete(request, frozenset() if request.upstream_id is None else frozenset({_GONE})):
            return
        try:
            await session.end("deleted")
        except StoreUnavailable as refusal:
            await send_refusal_without_id(request, refusal)
        else:
            await send_status(request.send, 200)


async def _resume(request: Request, named: Claims | None, dialects: Dialects) -> None:
    """Resume the stream of an event, for a call that names a live session of ours in its header, or None.

    Servers find an event by its id alone, so each of these ids must be authentic, and must belong to the caller, to the
    transport session and to the session of the request.
    """
    runtime, ring = request.runtime, request.runtime.ring(request.runtime.clock())
    try:
        event, is_same_transport = runtime.event_ids.verify(ring, request.headers.event_id or "", request.server_id)
    except SessionNotFound as refusal:
        await _refuse_event(request, refusal, None)
        return
    claims = runtime.event_ids.claims(event)
    if not (is_same_transport and _is_callers(request, event) and _may_resume(request, claims, named, dialects)):
        await _refuse_event(
            request, SessionNotFound("event_foreign", ref=None if claims is None else claims.ref), claims
        )
        return
    call = None
    if claims is not None:
        call = runtime.calls.find(event.call)
        if call is None:  # another process runs the call, or has run it
            changes = (MakePrivate(),)
            call = Call(claims, event.request_id, "GET", request.server_id, changes=changes, name=event.call)
        call.answered = call.answered or event.answered
    if not event.value:  # the middleware ended the stream
        await send_status(request.send, _METHOD_NOT_ALLOWED, (b"allow", b"POST"))
        return
    request.edit_headers(set(), (LAST_EVENT_ID, event.value.strip(b" \t")))  # as a server reads a header
    if call is None:
        await _pass(request, signing_send(request))
    else:
        await _listen(request, call)


async def _refuse_event(request: Request, refusal: SessionNotFound, claims: Claims | None) -> None:
    refusal.http_status = _GONE
    if await may_listen(request):
        await send_refusal_without_id(request, refusal, claims, "GET")


def _is_callers(request: Request, event: EventId) -> bool:
    principal = request.principal
    if principal is None:
        return event.subject is None
    return event.subject in request.runtime.ring(request.runtime.clock()).subjects(principal)


def _may_resume(request: Request, claims: Claims | None, named: Claims | None, dialects: Dialects) -> bool:
    """Return True unless the headers of a request show that it does not belong to the session of an event.

    Clients that send their session in messages need not repeat it, since they hold an id that was signed for it. The
    wrapped server's own transport session is checked before, and a remembered session is found by the caller alone.
    """
    if claims is None:
        return True
    if named is not None and named.ref == claims.ref:
        return True
    for one in dialects.all:
        if one.is_always_sent and claims.kind in one.kinds:
            return _sent_ref(request, one) == claims.ref
    return named is None or request.upstream_id is not None


def _sent_ref(request: Request, dialect: Dialect) -> str | None:
    credential = dialect.find(request, ())
    if not isinstance(credential, Credential):
        return None
    claims = _verified_claims(request, credential)
    return None if claims is None else claims.ref


async def _listen(request: Request, call: Call) -> None:
    """Serve the stream of a call for as long as its session is live. The call itself may have ended."""
    try:
        if call.answered or not call.ended_its_session:  # a call that ends its own session gets its answer once
            await _check_live(request, call.claims)
    except StoreUnavailable as refusal:
        await send_refusal_without_id(request, refusal, call.claims, call.label)
        return
    except SessionNotFound as refusal:
        refusal.http_status = _GONE
        if call.answered:
            await send_status(request.send, _METHOD_NOT_ALLOWED, (b"allow", b"POST"))  # its client has its answer
        elif call.id is not None:
            await _refuse_call(request, call, call.id, refusal)
        else:
            await send_refusal_without_id(request, refusal, call.claims, call.label)
        return
    request.demand_whole_answer()
    recheck_at = request.runtime.clock() + RECHECK_AFTER
    response = Response(request, request.send, call.id or b"", call=call, recheck_at=recheck_at, changes=call.changes)
    response.enlist()
    try:
        await _pass(request, response.send)
        await response.finish()
    finally:
        close_session(response, None)


async def _refuse_call(request: Request, call: Call, request_id: bytes, refusal: SessionNotFound) -> None:
    """Answer the call of a client that was away when its session ended, for clients take a status for a lost stream."""
    refusal.executed = True
    record_unparsed_refusal(request, refusal, call.claims, call.label)
    await send_event(request, rewrite.error(request_id, refusal.code, refusal.client_message, error_data(refusal)))


async def _pass(request: Request, send: Send) -> None:
    """Call the application for a request outside of sessions."""
    with without_session(request.scope):
        await request.app(request.scope, request.receive, send)


async def _check_live(request: Request, claims: Claims) -> None:
    status = await request.runtime.status(claims)
    if status is not LIVE:
        raise refusal_for_status(status, claims)
    if not request.runtime.clock() < claims.expires_at:
        raise SessionExpired(ref=claims.ref)
