"""One POST to the MCP endpoint, station by station: message, decision, session, and then answered or forwarded.

What happens to a message is decided in `_protocol.decision`, from a table; what its answer needs, in `rewrites`.
"""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from .._errors import NOT_JSONRPC, Refusal, SessionNotFound, StoreUnavailable
from .._errors import refuse as refusal_for
from .._protocol import rewrite
from .._protocol.decision import ADVERTISING, ANSWERED, ATTACH, PASS, STABLE, Decision, decide
from .._protocol.draft import INITIALIZE
from .._protocol.headers import SESSION_HEADER
from .._protocol.jsonrpc import NOTIFICATION, REQUEST, RESPONSE, Batch, Message, parse
from .._session.claims import COOKIE, SESSION, looks_like_session_id
from .._session.events import SessionUsed
from .._session.session import Session, correlation_variable, session_variable
from .answers import answer, notify, refuse, refuse_at_once, refuse_unread
from .body import Replay, refusal_of_batch
from .context import Given, RequestContext, keep_body_here, named_ids
from .current import ABSENCE_KEY, Absence, Why, absence_variable, note_absence
from .methods import METHODS, MethodCall
from .plain import PlainResponse, close_session
from .response import ResponseFilter
from .rewrites import new_cookie, passing_filter, response_filter
from .sessions import ActiveSession, open_others, open_session, opened, refused_claims
from .transport import in_context

if TYPE_CHECKING:
    from starlette.types import Message as ASGIMessage
    from starlette.types import Receive, Send

    from ..telemetry._outcome import RequestTelemetry

CONFIRMATION: Final = "notifications/initialized"
_EARLY: Final = frozenset({"initialize", "ping"})
_UNRECORDED: Final = nullcontext()
# Found once, since an imported name's attributes are looked up at every call.
_current_session: Final = session_variable.get
_set_session: Final = session_variable.set
_reset_session: Final = session_variable.reset


def handle_post(body: bytes, receive: Receive, given: Given) -> Awaitable[None]:
    """Return what handles one POST to the MCP endpoint, to be awaited. (Each further coroutine costs every request.)"""
    runtime, app, scope, send, headers, _ = given
    try:
        message = parse(body, runtime.batch, runtime.nesting)
    except Refusal as refusal:
        return _pass_or_refuse(body, receive, given, refusal)
    except Batch as batch:
        return _pass_or_refuse(body, receive, given, refusal_of_batch(batch, runtime.rules))
    if message.session is not None or not runtime.rules.passes(message, headers) or runtime.tells():
        return _handle(message, body, receive, given)
    scope["mcp_session"] = None
    try:
        scope["state"]["mcp_session"] = None
    except KeyError:
        scope["state"] = {"mcp_session": None}
    note_absence(scope, runtime, headers, message)
    if runtime.bridges or _current_session() is not None:
        return _forward_untouched(in_context(body, receive, given))
    return app(scope, Replay(body, receive).__call__, send)


async def _handle(message: Message, body: bytes, receive: Receive, given: Given) -> None:
    """Handle a message that may concern a session, or is recorded."""
    runtime, app, scope, _, headers, _ = given
    decision, session, refused = PASS, None, None
    try:
        decision = decide(message, headers, runtime.rules)
        attached = decision.attached
        if attached is not None:
            principal = runtime.principal(scope)
            session = opened(attached, runtime, principal) or await open_session(attached, runtime, principal)
    except Refusal as refusal:
        refused = refusal.with_traceback(None)  # which would be a circle, since it has this frame
    if session is None or not runtime.is_plain or message.kind is not REQUEST:
        await _handle_specially(in_context(body, receive, given), message, decision, session, refused)
        return
    telemetry = runtime.telemetry().begin(message, headers, scope, session.claims) if runtime.tells() else None
    scope["headers"] = headers.without_coding(scope["headers"])  # what is compressed cannot be changed
    if "extensions" in scope and scope["extensions"]:  # noqa: RUF019  # a call takes three times as long
        keep_body_here(scope)
    scope["mcp_session"] = current = Session(session)
    try:
        scope["state"]["mcp_session"] = current
    except KeyError:
        scope["state"] = {"mcp_session": current}
    response = PlainResponse(body, receive, given, message, session, telemetry)
    token, failed = _set_session(current), None
    try:
        await app(scope, response.__call__, response.pass_on)
    except BaseException as error:
        if not await _answers_failure(response.context, message, response.unsent, error):
            failed = error
            raise
    finally:
        _reset_session(token)
        if (
            response.filter is not None
            or not session.is_shut
            or (telemetry is not None and (telemetry.has_end or failed is not None))
        ):
            response.close(failed)
        del failed  # which has this frame, too


async def _handle_specially(
    ctx: RequestContext, message: Message, decision: Decision, session: ActiveSession | None, refused: Refusal | None
) -> None:
    """Handle what is not a request in a session of the draft, or is in a deployment that does more with those."""
    if session is None and refused is None:
        try:
            if decision.transport_id is not None or decision.kind != SESSION:
                session = await open_others(ctx, decision)
            if decision.metadata is not None and decision.kind == SESSION:
                principal = ctx.runtime.principal(ctx.scope)
                session = await open_session(decision.metadata, ctx.runtime, principal, decision.fail_open)
        except Refusal as refusal:
            refused, session = refusal.with_traceback(None), None
    if ctx.runtime.tells():
        with _recorded(ctx, message, decision, session, refused):
            await _respond(ctx, message, decision, session, refused)
    else:
        await _respond(ctx, message, decision, session, refused)


async def _pass_or_refuse(body: bytes, receive: Receive, given: Given, refusal: Refusal | None) -> None:
    """Refuse what could be read in two ways, or forward what holds no message that concerns a session."""
    runtime, _, scope, _, headers, strict = given
    if refusal is not None and refusal.reason == NOT_JSONRPC and not strict:
        refusal = None  # the path serves other things, too
    if refusal is None and headers.session_id is not None:
        refusal = refusal_for("session_header_alone")
    if refusal is not None:
        await refuse_unread(RequestContext(None, receive, *given), refusal)
        return
    scope["mcp_session"] = None
    scope.setdefault("state", {})["mcp_session"] = None
    note_absence(scope, runtime, headers, None)
    await _forward_untouched(in_context(body, receive, given))


def _respond(
    ctx: RequestContext, message: Message, decision: Decision, session: ActiveSession | None, refused: Refusal | None
) -> Awaitable[None]:
    if refused is not None:
        # A dead cookie is renewed at once, since its client does not know that it has one.
        is_dead = decision.kind == COOKIE and isinstance(refused, SessionNotFound)
        return refuse(ctx, message, refused, partial(new_cookie, ctx, message) if is_dead else None)
    if decision.step in ANSWERED:
        return answer(ctx, message, partial(METHODS[decision.step], MethodCall(ctx, message, session)), session)
    return _forward(ctx, message, decision, session)


async def _forward_untouched(ctx: RequestContext) -> None:
    """Forward a body that concerns no session, where a session is around or ids have to be translated."""
    token = _set_session(None)
    try:
        await ctx.app(ctx.scope, ctx, passing_filter(ctx) or ctx.send)
    finally:
        _reset_session(token)


async def _forward(ctx: RequestContext, message: Message, decision: Decision, session: ActiveSession | None) -> None:
    """Forward a message to the application, with its session where handlers look for it, and filter the answer."""
    runtime, scope, step, is_handshake = ctx.runtime, ctx.scope, decision.step, message.method == INITIALIZE
    attached = Session(session) if session is not None and step is ATTACH else None
    response = response_filter(ctx, message, decision, session)
    message = message if runtime.rules.sep1364 is None else await _plain(ctx, message)
    body = message.body
    # SDK 1.x logs a notification that it does not know as a whole, and nothing answers one that could echo.
    if step is STABLE or (session is not None and message.kind is NOTIFICATION):
        body = ctx.declare(rewrite.without_session(message))
    if runtime.conversation is not None and message.kind is not RESPONSE:
        body = runtime.conversation.label(ctx, message, body, attached)
    if attached is not None and runtime.listen is not None:
        runtime.listen(SessionUsed(attached.ref, message.label))
    scope["mcp_session"] = attached
    scope.setdefault("state", {})["mcp_session"] = attached
    around = None
    if attached is None or is_handshake:
        why: Why = "handshake" if message.method in ADVERTISING else "unnamed" if session is None else "list"
        scope[ABSENCE_KEY] = absence = Absence(runtime, ctx.headers, None if why == "handshake" else message, why)
        around = absence_variable.set(absence)
    # Stateful servers start the task that serves the whole connection in `initialize`, where no session may stick.
    token = _set_session(None if is_handshake else attached)
    ctx.body = body
    try:
        await ctx.app(scope, ctx.__call__, ctx.send if response is None else response.__call__)
    except Exception as error:
        if not await _answers_failure(ctx, message, response, error):
            raise
    finally:
        _reset_session(token)
        if around is not None:
            absence_variable.reset(around)
        if session is not None:
            close_session(session, response)
        if is_handshake and attached is not None:  # FastMCP's task of a connection keeps this request's scope
            scope["mcp_session"] = scope["state"]["mcp_session"] = None


async def _answers_failure(
    ctx: RequestContext, message: Message, response: ResponseFilter | None, error: BaseException
) -> bool:
    """Answer a request whose handler left us the store's error; any other is for the server that we run in."""
    if isinstance(error, Exception):  # else it was cancelled
        ctx.scope["mcp_session"] = ctx.scope["state"]["mcp_session"] = None  # what handles the error has no session
    if response is None or not isinstance(error, StoreUnavailable):
        return False
    return await response.fail(partial(refuse_at_once, ctx, message, error), error)


async def handle_labelled_post(*request: Any) -> None:
    """Handle a POST where conversations are labelled, and leave no label behind."""
    token = correlation_variable.set(None)
    try:
        await handle_post(*request)
    finally:
        correlation_variable.reset(token)


async def _plain(ctx: RequestContext, message: Message) -> Message:
    """Return a message of SEP-1364's as servers of today read it, to which its client may still owe another."""
    sep1364, pending = ctx.runtime.rules.sep1364, ctx.runtime.unconfirmed
    assert sep1364 is not None
    transport = ctx.headers.first(SESSION_HEADER)
    if pending is not None and transport is not None and transport in pending and message.method not in _EARLY:
        # By the second alternative a client may leave the confirmation out; a server of today waits for it.
        if message.method != CONFIRMATION:
            await notify(ctx, CONFIRMATION)
        pending.remove(transport)  # only now: a message beside this one must not overtake it
    plain = sep1364.outgoing(message)
    if plain is not message:
        ctx.declare(plain.body)
    return plain


def _recorded(
    ctx: RequestContext, message: Message, decision: Decision, session: ActiveSession | None, refused: Refusal | None
) -> AbstractContextManager[None]:
    """Let telemetry record a message, and observe the response to one that is not forwarded."""
    is_forwarded = refused is None and decision.step not in ANSWERED
    claims, server_id = None if session is None else session.claims, None
    if refused is not None:
        named = () if decision.metadata is None else (decision.metadata.session_id,)
        claims = refused_claims(ctx, refused, *named, decision.transport_id)
    if claims is None and not ctx.runtime.bridges:
        server_id = ctx.server_id
    begin = ctx.runtime.telemetry().begin
    ctx.telemetry = begin(message, ctx.headers, ctx.scope, claims, is_forwarded=is_forwarded, server_id=server_id)
    if ctx.telemetry is None:
        return _UNRECORDED
    if message.method == INITIALIZE and not ctx.runtime.bridges:
        ctx.send = partial(_learn_server_id, ctx.telemetry, ctx.send)
    if not is_forwarded and ctx.telemetry.observer is not None:
        ctx.send = ResponseFilter(ctx.send, b"", None, (), observer=ctx.telemetry, is_passing=True)
    return ctx.telemetry


async def _learn_server_id(telemetry: RequestTelemetry, send: Send, message: ASGIMessage) -> None:
    """Send a part of the answer to an `initialize`, where the wrapped server may name a transport session."""
    if message["type"] == "http.response.start":
        for server_id in named_ids(message):
            if not looks_like_session_id(server_id):
                telemetry.learn(server_id)
    await send(message)
