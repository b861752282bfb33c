"""One POST to the MCP endpoint, station by station: parse, decide, open the session, then answer, refuse or forward.

What happens to a message is decided in `_protocol.decision`, from a table; what its answer needs, in `rewrites`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final

from starlette.types import Scope

from .._errors import Refusal, SessionRequired, StoreUnavailable
from .._protocol import rewrite
from .._protocol.decision import (
    ANSWERED,
    CANCELLED,
    PASS,
    SESSIONLESS_METHODS,
    UNUSED,
    Action,
    Decision,
    Rules,
    decide,
    involves_session,
)
from .._protocol.draft import INITIALIZE
from .._protocol.headers import SESSION_HEADER
from .._protocol.jsonrpc import NOTIFICATION, REQUEST, RESPONSE, Batch, Message, parse
from .._protocol.lenient import may_evade
from .._refusals import NOT_JSONRPC
from .._refusals import refusal as refusal_for
from .._session.claims import COOKIE, PRINCIPAL
from .._session.events import SessionUsed
from .._session.session import Session, shown_variable
from ..telemetry._core import call_observer
from .answers import leads_to_legacy, notify, refuse, respond_to_session_method, send_refusal_without_id
from .body import replay
from .context import RequestContext, label
from .current import MISSING_SESSION_KEY, MissingSession, Why
from .event_ids import signing_send
from .methods import METHODS
from .minting import begin_offered
from .principal import is_unseen
from .principal_session import open_own_session
from .response import Response, close_session
from .rewrites import response_for
from .runtime import Runtime
from .sessions import open_named_session, refused_claims

if TYPE_CHECKING:
    from .._protocol.sep1364 import Sep1364

CONFIRMATION: Final = "notifications/initialized"


async def handle_post(ctx: RequestContext) -> None:
    """Handle one POST whose body may be a JSON-RPC message.

    Before it is answered or refused here, the wrapped server has to admit the caller (`answers.preflight`).
    """
    limits = ctx.runtime.limits
    try:
        message = parse(ctx.body, limits.batch, limits.nesting)
    except Refusal as refusal:
        await handle_unparsed(ctx, refusal)
        return
    except Batch as batch:
        await handle_unparsed(ctx, refusal_for("batch") if _concerns_session(batch, ctx.runtime.rules) else None)
        return
    decision, refused = PASS, None
    ctx.check_principal()
    try:
        if ctx.runtime.transport.leads_to_legacy and await leads_to_legacy(ctx, message):
            raise refusal_for("discovery_refused")
        has_own = ctx.runtime.transport.principal_idle is not None and ctx.is_own_page
        principal = ctx.user if has_own else None
        decision = decide(message, ctx.headers, ctx.runtime.rules, has_principal_session=principal is not None)
        session = None
        if decision.kind == PRINCIPAL and principal is not None:
            session = await open_own_session(ctx, message, principal, fail_open=decision.fail_open)
        elif decision.names_session:
            session = await open_named_session(ctx, decision)
            if session is not None and not session.has_begun and decision.action not in UNUSED:
                await begin_offered(session, ctx.scope)
        ctx.session = session
    except Refusal as refusal:
        refused = (await _reason_of(refusal, ctx.runtime)).with_traceback(None)  # which holds this frame: a cycle
    is_recording = ctx.runtime.telemetry.is_recording()
    with _recorded(ctx, message, decision, refused) if is_recording else nullcontext():
        if refused is not None:
            await refuse(ctx, message, refused, by_cookie=decision.kind == COOKIE)
        elif decision.action in ANSWERED:
            await respond_to_session_method(ctx, message, METHODS[decision.action])
        else:
            await forward(ctx, message, decision)


def _concerns_session(batch: Batch, rules: Rules) -> bool:
    """Whether a batch must be refused, since batches are forwarded unmodified: a message in it concerns a session."""
    return any(involves_session(item, rules) or rewrite.without_session(item) != item.body for item in batch.items)


async def _reason_of(refusal: Refusal, runtime: Runtime) -> Refusal:
    """Return why a request is refused: it may lack a session because the store does not answer."""
    if refusal.code == SessionRequired.code and runtime.store_fault is not None:
        try:
            await runtime.store.statuses(())
        except StoreUnavailable as error:
            return error
    return refusal


async def handle_unparsed(ctx: RequestContext, refusal: Refusal | None) -> None:
    """Refuse what could be read in two ways, or forward what holds no message that concerns a session."""
    may_pass = refusal is not None and refusal.reason == NOT_JSONRPC and not ctx.at_endpoint
    if may_pass and not may_evade(ctx.body, ctx.runtime.rules):
        refusal = None  # the path serves other things, too
    if refusal is None and ctx.headers.session_id is not None:
        refusal = refusal_for("session_header_alone")
    if refusal is not None:
        await send_refusal_without_id(ctx, refusal)
    else:
        await forward(ctx)


async def forward(ctx: RequestContext, message: Message | None = None, decision: Decision = PASS) -> None:
    """Call the application: whatever is forwarded of a POST passes here.

    In an answer that nothing changes or observes, only event ids are signed. The body as it came is in no variable of
    this frame, nor of those around it: error reporters print the variables of every frame.
    """
    attached, response = None, response_for(ctx, message, decision)
    body = ctx.body if message is None else b""
    if message is not None:
        if ctx.session is not None and decision.action is Action.ATTACH:
            attached = ctx.session.session
            ctx.session.answered = message.kind is not REQUEST
            if (listen := ctx.runtime.telemetry.listen) is not None:
                call_observer("listen=", listen, SessionUsed(attached.ref, message.label))
        if message.method == CANCELLED and message.kind is NOTIFICATION and "requestId" in message.all_params:
            ref = None if ctx.session is None else ctx.session.claims.ref
            ctx.runtime.streams.cancel(ref, ctx.server_id, bytes(message.all_params["requestId"]))
        body = await prepare_message(ctx, message, attached)
    shown = shown_variable.set(_show(ctx, message, attached))
    try:
        await call_app(ctx, body, response)
    except Exception as error:
        _put(ctx.scope, None)  # what handles the error has no session
        if message is None or response is None or response.has_left or not isinstance(error, StoreUnavailable):
            raise
        error.ref = error.ref or (None if ctx.session is None else ctx.session.claims.ref)
        await response.refuse(error)
    finally:
        shown_variable.reset(shown)
        if message is not None and message.method == INITIALIZE:  # FastMCP's task of a connection keeps the scope
            _put(ctx.scope, None)
        close_session(response, ctx.session)


async def call_app(ctx: RequestContext, body: bytes, response: Response | None) -> None:
    """Call the application, and return or raise as it does, once its response has ended if its session has."""
    if response is None:
        await ctx.app(ctx.scope, replay(body, ctx.receive), signing_send(ctx))
        return
    response.enlist()
    try:
        await ctx.app(ctx.scope, replay(body, ctx.receive), response.send)
    except Exception:
        await response.finish()
        raise
    await response.finish()


def _show(ctx: RequestContext, message: Message | None, attached: Session | None) -> dict[str, Any]:
    """Show the session, or why there is none, on the scope; return what is shown by the context variable."""
    _put(ctx.scope, attached)
    # Servers start the task that serves the whole connection in `initialize`, where nothing of one request may stick.
    is_handshake = message is not None and message.method == INITIALIZE
    if attached is not None and not is_handshake:
        return {"mcp_session": attached}
    ctx.scope[MISSING_SESSION_KEY] = missing = _missing_session(ctx, message)
    return {MISSING_SESSION_KEY: missing, "mcp_correlation": None if is_handshake else ctx.scope.get("mcp_correlation")}


def _put(scope: Scope, session: Session | None) -> None:
    scope["mcp_session"] = scope.setdefault("state", {})["mcp_session"] = session


async def prepare_message(ctx: RequestContext, message: Message, attached: Session | None) -> bytes:
    """Return the body as the application gets it: without the session, and with our trace context."""
    runtime = ctx.runtime
    if runtime.rules.sep1364 is not None:
        message = await _to_standard_message(ctx, message, runtime.rules.sep1364)
    body = rewrite.without_session(message)
    if body is not message.body:
        ctx.set_content_length(body)
    if runtime.correlate and message.kind is not RESPONSE:
        label(ctx, message, attached)
    return body if ctx.telemetry is None else ctx.carry_trace(body, ctx.telemetry.traceparent)


async def _to_standard_message(ctx: RequestContext, message: Message, sep1364: Sep1364) -> Message:
    """Return a message without what SEP-1364 adds, after the confirmation that its client may have left out."""
    pending, transport = ctx.runtime.unconfirmed, ctx.headers.first(SESSION_HEADER)
    if transport is not None and transport in pending and message.method not in SESSIONLESS_METHODS:
        # By the second alternative a client may leave the confirmation out; a server of today waits for it.
        if message.method != CONFIRMATION:
            await notify(ctx, CONFIRMATION)
        pending.pop(transport, None)  # only now: a concurrent message must not overtake it
    standard = sep1364.outgoing(message)
    if standard is not message:
        ctx.set_content_length(standard.body)
    return standard


def _missing_session(ctx: RequestContext, message: Message | None) -> MissingSession | None:
    if message is not None and (message.kind is not REQUEST or message.method in SESSIONLESS_METHODS):
        return None
    if ctx.session is not None:
        return MissingSession(ctx.runtime, ctx.headers, message, "list")
    if is_unseen(ctx.runtime.principal, ctx.scope, ctx.headers.by_name):
        return MissingSession(ctx.runtime, ctx.headers, message, "unseen")
    lacks_user = ctx.runtime.transport.principal_idle is not None and ctx.user is not ctx.principal
    why: Why = "client" if lacks_user else "unnamed"
    return MissingSession(ctx.runtime, ctx.headers, message, why, ctx.scope.get("scheme", "http"))


@contextmanager
def _recorded(ctx: RequestContext, message: Message, decision: Decision, refused: Refusal | None) -> Iterator[None]:
    """Let telemetry record a message, and observe the response to one that is not forwarded."""
    is_forwarded = refused is None and decision.action not in ANSWERED
    claims = None if ctx.session is None else ctx.session.claims
    if refused is not None:
        ids = () if decision.metadata is None else (decision.metadata.session_id,)
        claims = refused_claims(ctx, refused, *ids, decision.header_token)
    server_id = ctx.server_id if claims is None and not ctx.runtime.transport.bridges else None
    begin, send = ctx.runtime.telemetry.recorder().begin, ctx.send
    ctx.telemetry = begin(message, ctx.headers, ctx.scope, claims, is_forwarded=is_forwarded, server_id=server_id)
    if ctx.telemetry is not None:
        ctx.telemetry.store_fault = ctx.runtime.store_fault_since
    observed = None
    if not is_forwarded and ctx.telemetry is not None:
        observed = Response(ctx, send, observer=ctx.telemetry, passes_body=True, signs_ids=False)
        ctx.send = observed.send
    try:
        with ctx.telemetry or nullcontext():
            yield
    finally:
        ctx.send = send
        close_session(observed, None)
