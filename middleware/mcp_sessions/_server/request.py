"""One POST to the MCP endpoint, station by station: body, message, decision, session, and then answered or forwarded.

What happens to a message is decided in `_protocol.decision`, from a table; what its answer needs, in `rewrites`.
"""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Final

from .._errors import Refusal, SessionNotFound, StoreUnavailable
from .._protocol import rewrite
from .._protocol.decision import ADVERTISING, ANSWERED, ATTACH, CANCELLED, ECHOES, PASS, STABLE, Decision, decide
from .._protocol.draft import INITIALIZE
from .._protocol.headers import SESSION_HEADER
from .._protocol.jsonrpc import NOTIFICATION, REQUEST, RESPONSE, Message
from .._protocol.strict_json import join
from .._session.claims import COOKIE, SESSION, looks_like_session_id
from .._session.events import SessionUsed
from .._session.session import Session, correlation_variable, session_variable
from .answers import answer, notify, refuse, refuse_at_once, refuse_unread, refused_body
from .body import read_body, read_message
from .context import Bridged, RequestContext, named_ids
from .current import ABSENCE_KEY, Absence, Why, absence_variable, note_absence
from .methods import METHODS, MethodCall
from .response import ResponseFilter, Rewrite
from .rewrites import new_cookie, passing_filter, rewrites_for
from .sessions import ActiveSession, open_others, open_session, refused_claims
from .streams import Origin, StreamGuard

if TYPE_CHECKING:
    from starlette.types import Message as ASGIMessage
    from starlette.types import Send

    from ..telemetry._outcome import RequestTelemetry

CONFIRMATION: Final = "notifications/initialized"
_EARLY: Final = frozenset({"initialize", "ping"})
_UNRECORDED: Final = nullcontext()


async def handle_post(ctx: RequestContext) -> None:
    """Handle one POST to the MCP endpoint, from its first byte to the last byte of the response."""
    runtime, headers = ctx.runtime, ctx.headers
    try:
        arriving = read_body(ctx.receive, headers, runtime.limits.body_bytes, runtime.body_timeout)
        body = arriving if isinstance(arriving, bytes) else await arriving
        message = read_message(body, ctx)
    except Refusal as refusal:
        await refuse_unread(ctx, refusal)
        return
    passes = message is None or (message.session is None and runtime.rules.passes(message, headers))
    if message is None or (passes and not runtime.tells()):
        ctx.body, scope = body, ctx.scope
        scope["mcp_session"] = None
        scope.setdefault("state", {})["mcp_session"] = None
        note_absence(scope, runtime, headers, message)
        if runtime.bridges or session_variable.get() is not None:
            await _forward_untouched(ctx)
        else:  # from here, since most requests are such
            await ctx.app(scope, ctx.__call__, ctx.send)
        return
    decision, session, refused = PASS, None, None
    try:
        if not passes:
            decision = decide(message, headers, runtime.rules)
        if decision.transport_id is not None or decision.kind != SESSION:
            session = await open_others(ctx, decision)
        if decision.metadata is not None and decision.kind == SESSION:
            session = await open_session(decision.metadata, runtime, runtime.principal(ctx.scope), decision.fail_open)
    except Refusal as refusal:
        refused, session = refusal, None
    if runtime.tells():
        with _recorded(ctx, message, decision, session, refused):
            await _respond(ctx, message, decision, session, refused)
    elif refused is None and decision.step is ATTACH:  # from here, since most requests in sessions are such
        await _forward(ctx, message, decision, session)
    else:
        await _respond(ctx, message, decision, session, refused)


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
    token = session_variable.set(None)
    try:
        await ctx.app(ctx.scope, ctx, passing_filter(ctx) or ctx.send)
    finally:
        session_variable.reset(token)


async def _forward(ctx: RequestContext, message: Message, decision: Decision, session: ActiveSession | None) -> None:
    """Forward a message to the application, with its session where handlers look for it, and filter the answer."""
    runtime, scope, step, is_handshake = ctx.runtime, ctx.scope, decision.step, message.method == INITIALIZE
    attached = Session(session) if session is not None and step is ATTACH else None
    response = _response_filter(ctx, message, decision, session)
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
    token = session_variable.set(None if is_handshake else attached)
    ctx.body = body
    try:
        await ctx.app(scope, ctx.__call__, ctx.send if response is None else response.__call__)
    except Exception as error:  # noqa: BLE001  # it is answered, or raised again
        await _failed(ctx, message, response, error)
    finally:
        session_variable.reset(token)
        if around is not None:
            absence_variable.reset(around)
        if session is not None and response is not None and response.guard is not None:
            response.finish(session)
        elif session is not None and not session.is_shut:
            session.shut()
        if is_handshake and attached is not None:  # FastMCP's task of a connection keeps this request's scope
            scope["mcp_session"] = scope["state"]["mcp_session"] = None


async def _failed(ctx: RequestContext, message: Message, response: ResponseFilter | None, error: Exception) -> None:
    """Answer a request whose handler left us the store's error; any other is for the server that we run in."""
    ctx.scope["mcp_session"] = ctx.scope["state"]["mcp_session"] = None  # what handles the error has no session
    if response is None or not isinstance(error, StoreUnavailable):
        raise error
    if not await response.fail(partial(refuse_at_once, ctx, message, error), error):
        raise error


async def handle_labelled_post(ctx: RequestContext) -> None:
    """Handle a POST where conversations are labelled, and leave no label behind."""
    token = correlation_variable.set(None)
    try:
        await handle_post(ctx)
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


def _response_filter(
    ctx: RequestContext, message: Message, decision: Decision, session: ActiveSession | None
) -> ResponseFilter | None:
    """Return what changes or observes the response to a message on its way out, or None where nothing does."""
    if message.kind is not REQUEST:
        if message.method == CANCELLED and "requestId" in message.all_params:
            ref = None if session is None else session.claims.ref
            ctx.runtime.streams.cancel(ref, _upstream_id(ctx), bytes(message.all_params["requestId"]))
        return passing_filter(ctx)
    runtime, scope, echoed = ctx.runtime, ctx.scope, session if decision.step in ECHOES else None
    is_plain = message.method not in ADVERTISING and runtime.rules.sep1364 is None and not runtime.bridges
    if is_plain and (echoed is None or echoed.claims.kind == SESSION):
        rewrites: tuple[Rewrite, ...] = ()
    else:
        rewrites = rewrites_for(ctx, message, session, echoed)
    if echoed is None and not rewrites:
        return passing_filter(ctx)
    scope["headers"] = ctx.headers.without_coding(scope["headers"])  # what is compressed cannot be changed
    if scope.get("extensions"):
        ctx.keep_body_here()
    return ResponseFilter(
        ctx.send,
        join(message.given_id),
        None if rewrites else echoed,
        rewrites,
        None if session is None else _guard,
        runtime.limits.event_bytes,
        inf if session is None else session.late_at,
        runtime.clock,
        None if ctx.telemetry is None else ctx.telemetry.observer,
        guarded=(ctx, message, session, decision.fail_open),
    )


def _guard(ctx: RequestContext, message: Message, session: ActiveSession, fail_open: bool) -> StreamGuard:
    return StreamGuard(
        Origin(session.claims, message.id, message.label),
        _upstream_id(ctx),
        ctx.runtime.streams,
        ctx.runtime.events,
        refused=partial(refused_body, ctx, message),
        survives_end=lambda: session.ended_by_own_request,
        fail_open=fail_open,
    )


def _upstream_id(ctx: RequestContext) -> str | None:
    """Return the id of the wrapped server's transport session that a request comes by, or None where it has none."""
    if isinstance(ctx.bridge, Bridged):
        return ctx.bridge.server_id
    return ctx.server_id


def _recorded(
    ctx: RequestContext, message: Message, decision: Decision, session: ActiveSession | None, refused: Refusal | None
) -> AbstractContextManager[None]:
    """Let telemetry record a message, and observe the response to one that is not forwarded."""
    recorder, is_forwarded = ctx.runtime.telemetry(), refused is None and decision.step not in ANSWERED
    claims, server_id = None if session is None else session.claims, None
    if refused is not None:
        named = () if decision.metadata is None else (decision.metadata.session_id,)
        claims = refused_claims(ctx, refused, *named, decision.transport_id)
    if claims is None and not ctx.runtime.bridges:
        server_id = ctx.server_id
    ctx.telemetry = recorder.begin(
        message,
        version=ctx.headers.version,
        session=claims,
        is_forwarded=is_forwarded,
        scope=ctx.scope,
        headers=ctx.headers.by_name,
        server_id=server_id,
    )
    if recorder.wraps_handlers:
        recorder.store_context(ctx.scope, message)
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
