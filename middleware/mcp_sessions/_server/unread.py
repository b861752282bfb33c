"""Requests without a body: DELETE, which ends a session, and GET, which listens or resumes a stream.

A stateless server would keep a GET open and never write to it, so a client with one of our ids learns that there is no
stream. A client that resumes a stream (`Last-Event-ID`) is served neither the results of a session that has ended, nor
a stream of another session, transport session or caller.
Source: MCP 2025-11-25, Streamable HTTP, "Session Management" and "Resumability and Redelivery".
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from .._dialects.base import Answers, Credential, Dialect, Dialects
from .._errors import Refusal, SessionExpired, SessionNotFound, StoreUnavailable
from .._protocol.headers import LAST_EVENT_ID
from .._session.claims import Claims
from .._session.endings import Ending
from .._tokens.event_ids import EventId
from ..stores._base import LIVE
from .answers import may_delete, record_unparsed_refusal, send_refusal_without_id, send_status
from .changes import MakePrivate
from .context import Request, carried_session
from .decide import FORWARD_UNCHANGED, Action, Plan, identify
from .resumption import Call, refusal_for_status
from .sessions import refused_claims

_METHOD_NOT_ALLOWED: Final = 405
_GONE: Final = 404  # what a server answers for a session that it does not have


def decide_unread(request: Request, dialects: Dialects) -> Plan:
    """Decide what happens to a request whose body is not read, or that holds no message."""
    method, headers = request.scope["method"], request.headers
    if headers.session_id is None:
        return FORWARD_UNCHANGED
    credential, *_ = identify(request, dialects)
    if method == "DELETE":
        return Plan(Action.ANSWER, (credential,), Answers(delete))
    if headers.event_id is not None or (method == "GET" and any(one.serves_streams for one in dialects.all)):
        return Plan(Action.FORWARD, (credential,))
    refused = None
    try:
        request.claims = verified_claims(request, credential)
    except SessionNotFound as refusal:
        refused = refusal.with_traceback(None)
        request.claims = refused_claims(request, refused, credential.id)
    return Plan(Action.ANSWER, answers=Answers(partial(answer_without_stream, refused)))


async def delete(request: Request) -> dict[str, Any]:
    """Answer a DELETE, which ends the session of its header."""
    session, runtime = carried_session(request), request.runtime
    # When the wrapped server is asked, it may end its calls itself, before the middleware ends them with an error.
    with runtime.streams.ending(session.ref):
        # If the wrapped server no longer has the transport session, it has nothing to end.
        if not await may_delete(request, frozenset() if request.upstream_id is None else frozenset({_GONE})):
            return {}
        try:
            await session._end(Ending("deleted", "client"))
        except StoreUnavailable as refusal:
            await send_refusal_without_id(request, refusal)
        else:
            await send_status(request.send, 200)
    return {}


async def answer_without_stream(refused: Refusal | None, request: Request) -> dict[str, Any]:
    """Answer that there is no stream, whatever the id is; a stolen or forged one is reported."""
    if refused is not None:
        record_unparsed_refusal(request, refused, request.scope["method"])
    await send_status(request.send, _METHOD_NOT_ALLOWED, (b"allow", b"POST, DELETE"))
    return {}


async def answer_ended_stream(request: Request) -> dict[str, Any]:
    """Answer that a stream has ended, so its client expects nothing more of it."""
    await send_status(request.send, _METHOD_NOT_ALLOWED, (b"allow", b"POST"))
    return {}


# --- streams ---


async def find_stream(request: Request, plan: Plan, dialects: Dialects) -> Plan:
    """Find the call whose stream a GET listens to or resumes; return the plan, which changes if there is no stream.

    Raises:
        Refusal: The event is unknown or another caller's, its session does not live, or the store did not answer.
    """
    session, event_id = request.session, request.headers.event_id
    if session is not None:
        request.claims = session._claims
    if plan.answers is not None:
        return plan
    if event_id is not None:
        request.label = "GET"
        return await resume(request, plan, verify_event(request, event_id, dialects))
    if session is None:
        return plan
    if request.upstream_id is None:
        return Plan(Action.ANSWER, answers=Answers(partial(answer_without_stream, None)))
    request.label, request.call = "GET", Call((session._claims,), None, "GET", request.upstream_id)
    return plan


def verify_event(request: Request, event_id: str, dialects: Dialects) -> EventId:
    """Verify the event from which a GET resumes, note its session, and return the event.

    Servers find an event by its id alone, so each of these ids must be authentic, and must belong to the caller, to the
    transport session and to the session of the request.
    """
    runtime, named = request.runtime, request.claims
    event, is_same_transport = runtime.event_ids.verify(runtime.ring(runtime.clock()), event_id, request.server_id)
    request.claims = claims = runtime.event_ids.claims(event)
    if is_same_transport and is_callers(request, event) and may_resume(request, claims, named, dialects):
        return event
    raise SessionNotFound("event_foreign", ref=None if claims is None else claims.ref)


async def resume(request: Request, plan: Plan, event: EventId) -> Plan:
    """Let the application resume a stream from an event, in the call that it belongs to."""
    runtime, claims, call = request.runtime, request.claims, None
    if claims is not None:
        call = runtime.calls.find(event.call)
        if call is None:  # another process runs the call, or has run it
            changes = (MakePrivate(),)
            call = Call((claims,), event.request_id, "GET", request.server_id, changes=changes, name=event.call)
        call.answered = call.answered or event.answered
        request.label, request.call = call.label, call
    if not event.value:  # the middleware ended the stream
        return Plan(Action.ANSWER, answers=Answers(answer_ended_stream))
    try:
        # A call that ends the session it belongs to gets its answer once.
        if call is not None and (call.answered or not call.ended_its_session):
            await check_live(request, call.claims)
    except SessionNotFound as refusal:
        assert call is not None
        if call.answered:
            return Plan(Action.ANSWER, answers=Answers(answer_ended_stream))
        refusal.executed = call.id is not None
        raise
    request.edit_headers(set(), (LAST_EVENT_ID, event.value.strip(b" \t")))  # as a server reads a header
    return plan


def is_callers(request: Request, event: EventId) -> bool:
    """Return True if an event was sent to the caller of the request."""
    principal = request.principal
    if principal is None:
        return event.subject is None
    return event.subject in request.runtime.ring(request.runtime.clock()).subjects(principal)


def may_resume(request: Request, claims: Claims | None, named: Claims | None, dialects: Dialects) -> bool:
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
            return sent_ref(request, one) == claims.ref
    return named is None or request.upstream_id is not None


def sent_ref(request: Request, dialect: Dialect) -> str | None:
    """Return the public name of the session that a request identifies in this dialect; report a forged id."""
    credential = dialect.find(request, ())
    if not isinstance(credential, Credential):
        return None
    try:
        return verified_claims(request, credential).ref
    except SessionNotFound as refusal:
        record_unparsed_refusal(request, refusal, request.scope["method"])
        return None


def verified_claims(request: Request, credential: Credential) -> Claims:
    """Return the claims of a valid session id, or raise `SessionNotFound`."""
    runtime, now = request.runtime, request.runtime.clock()
    return runtime.tokens.verify(
        runtime.ring(now), credential.id, now=now, principal=request.principal, kind=credential.kind
    ).claims


async def check_live(request: Request, claims: Claims) -> None:
    """Check that the session of a stream is live, or raise what refuses it."""
    (found,) = await request.runtime.look_ups.ask(claims)
    if found.status is not LIVE:
        raise refusal_for_status(found.status, claims)
    if not request.runtime.clock() < claims.expires_at:
        raise SessionExpired(ref=claims.ref)
