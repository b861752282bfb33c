"""One POST to the MCP endpoint, station by station: body, message, decision, session, and then answered or forwarded.

What happens to a message is decided in `_protocol.decision`, from a table; what its answer needs, in `response`.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Final

import msgspec

from .._protocol import rewrite
from .._protocol.decision import ANSWERED, ATTACH, PASS, STABLE, Decision, decide
from .._protocol.draft import INITIALIZE
from .._protocol.headers import SESSION_HEADER
from .._protocol.jsonrpc import NOTIFICATION, RESPONSE, Message
from .._session.claims import SESSION
from .._session.events import SessionUsed
from .._session.session import Session, correlation_variable, session_variable
from ..errors import Refusal
from .answers import answer, notify, refuse, refuse_unread
from .body import Replay, read_body, read_message
from .context import RequestContext
from .methods import METHODS, MethodCall
from .response import response_filter
from .sessions import ActiveSession, open_others, open_session

if TYPE_CHECKING:
    from ..telemetry.outcome import RequestTelemetry

CONFIRMATION: Final = "notifications/initialized"
_EARLY: Final = frozenset({"initialize", "ping"})


async def handle_post(ctx: RequestContext) -> None:
    """Handle one POST to the MCP endpoint, from its first byte to the last byte of the response."""
    runtime, headers = ctx.runtime, ctx.headers
    try:
        body = read_body(ctx.receive, headers, max_bytes=runtime.max_body_bytes, timeout=runtime.body_timeout)
        if not isinstance(body, bytes):  # it did not come with the headers
            body = await body
        message = read_message(body, ctx)
    except Refusal as refusal:
        await refuse_unread(ctx, refusal)
        return
    passes = message is None or runtime.rules.passes(message, headers)
    if message is None or (passes and not runtime.tells()):
        await forward_untouched(ctx, body)
        return
    decision, session, refused = PASS, None, None
    try:
        if not passes:
            decision = decide(message, headers, runtime.rules)
        if decision.transport_id is not None or decision.kind != SESSION:
            session = await open_others(ctx, decision)
        if decision.metadata is not None and decision.kind == SESSION:
            principal = runtime.principal(ctx.scope)
            session = await open_session(decision.metadata, runtime, principal=principal, fail_open=decision.fail_open)
    except Refusal as refusal:
        refused, session = refusal, None
    with _observed(ctx, message, decision, session, refused) if runtime.tells() else _UNOBSERVED:
        if refused is not None:
            await refuse(ctx, message, refused)
        elif decision.step in ANSWERED:
            await answer(ctx, message, partial(METHODS[decision.step], MethodCall(ctx, message, session)), session)
        else:
            await forward(ctx, message, decision, session)


async def forward(ctx: RequestContext, message: Message, decision: Decision, session: ActiveSession | None) -> None:
    """Forward a message to the application, with its session where handlers look for it, and filter the answer."""
    runtime, scope, step, is_handshake = ctx.runtime, ctx.scope, decision.step, message.method == INITIALIZE
    attached = Session(session) if session is not None and step is ATTACH else None
    response = response_filter(ctx, message, decision, session)
    if runtime.rules.sep1364 is not None:
        message = await _plain(ctx, message)
    body = message.body
    # SDK 1.x logs a notification that it does not know as a whole, and nothing answers one that could echo.
    if step is STABLE or (session is not None and message.kind is NOTIFICATION):
        body = ctx.declare(rewrite.without_session(message))
    if runtime.conversation is not None and message.kind is not RESPONSE:
        body = _labelled(ctx, message, attached, body)
    if attached is not None and runtime.listen is not None:
        runtime.listen(SessionUsed(attached.ref, message.label))
    scope["mcp_session"] = attached
    scope.setdefault("state", {})["mcp_session"] = attached
    # Stateful servers start the task that serves the whole connection in `initialize`, where no session may stick.
    token = session_variable.set(None if is_handshake else attached)
    try:
        await ctx.app(scope, Replay(body, ctx.receive), ctx.send if response is None else response.__call__)
    finally:
        session_variable.reset(token)
        if response is not None and response.guard is not None:
            response.close()
        if session is not None:
            session.shut()
        if is_handshake and attached is not None:  # FastMCP's task of a connection keeps this request's scope
            scope["mcp_session"] = scope["state"]["mcp_session"] = None


async def forward_untouched(ctx: RequestContext, body: bytes) -> None:
    """Forward a body that concerns no session, byte for byte."""
    scope, token = ctx.scope, None
    scope["mcp_session"] = None
    scope.setdefault("state", {})["mcp_session"] = None
    if session_variable.get() is not None:  # mostly none is around
        token = session_variable.set(None)
    try:
        await ctx.app(scope, Replay(body, ctx.receive), ctx.send)
    finally:
        if token is not None:
            session_variable.reset(token)


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


def _labelled(ctx: RequestContext, message: Message, session: Session | None, body: bytes) -> bytes:
    conversation = ctx.runtime.conversation
    assert conversation is not None
    found = conversation.label(message, body, headers=ctx.headers, session=session, scope=ctx.scope)
    return body if found is body else ctx.declare(found)


class _Observed(msgspec.Struct):
    """A message while telemetry records it.

    Args:
        telemetry: What records it, or None where nothing needs its end.
    """

    telemetry: RequestTelemetry | None

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.telemetry is not None:
            self.telemetry.end(error)


_UNOBSERVED: Final = nullcontext()


def _observed(
    ctx: RequestContext, message: Message, decision: Decision, session: ActiveSession | None, refused: Refusal | None
) -> _Observed:
    """Let telemetry record a message, and observe its answer."""
    recorder = ctx.runtime.telemetry()
    ctx.telemetry = recorder.begin(
        message,
        version=ctx.headers.version,
        session=None if session is None else session.claims,
        is_forwarded=refused is None and decision.step not in ANSWERED,
    )
    recorder.store_context(ctx.scope, message)
    if ctx.telemetry is not None:
        ctx.send = recorder.observed(ctx.send, ctx.telemetry)
    return _Observed(ctx.telemetry)
