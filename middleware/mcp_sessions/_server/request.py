"""One POST to the MCP endpoint, station by station: parse, decide, open the session, then answer, refuse or forward.

What happens to a message is decided in `decide`, from a table; how its session is identified, and what its answer
needs, is up to the dialects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, Final

from starlette.types import Scope

from .._dialects.base import Answers, Dialects
from .._errors import Refusal, SessionRequired, StoreUnavailable
from .._protocol import rewrite
from .._protocol.jsonrpc import NOTIFICATION, REQUEST, RESPONSE, Batch, Message, parse
from .._protocol.lenient import may_evade
from .._protocol.methods import CANCELLED, DISCOVER, HANDSHAKES, INITIALIZE, SESSIONLESS
from .._protocol.outgoing import UNSENT
from .._refusals import NOT_JSONRPC
from .._refusals import refusal as refusal_for
from .._session.events import SessionUsed
from .._session.session import Session, shown_variable
from ..telemetry._core import call_observer
from .answers import NULL_ID, preflight, respond, send_refusal, send_refusal_without_id
from .body import replay
from .context import Request, record_correlation
from .current import MISSING_SESSION_KEY, MissingSession, explain
from .decide import FORWARD_UNCHANGED, Action, Plan, Rules, decide, is_required_by
from .event_ids import signing_send
from .response import Change, Response, close_session
from .resumption import Call
from .runtime import Runtime
from .sessions import refused_claims

_ECHOING: Final = frozenset({Action.ATTACH, Action.ECHO})


async def handle_post(request: Request, dialects: Dialects, rules: Rules) -> None:
    """Handle one POST whose body may be a JSON-RPC message.

    Before it is answered or refused here, the wrapped server has to admit the caller (`answers.preflight`).
    """
    limits, refused = request.runtime.limits, None
    # The server is called out of the handlers: an error of its own would show their frames, which hold what came.
    try:
        request.message = parse(request.body, limits.batch, limits.nesting)
    except Refusal as refusal:
        refused = refusal.with_traceback(None)
    except Batch as batch:  # forwarded unmodified, so refuse any that concerns a session
        concerns = any(concerns_session(dialects, rules, item) for item in batch.items)
        refused = refusal_for("batch") if concerns else None
    if (message := request.message) is None:
        await handle_unparsed(request, refused, partial(concerns_session, dialects, rules))
        return
    plan = FORWARD_UNCHANGED
    request.check_principal()
    try:
        if message.method == DISCOVER:
            for before_discovery in dialects.before_discovery:
                await before_discovery(request)
        plan = decide(request, message, dialects, rules)
        if plan.credentials:
            request.session = await open_sessions(request, plan)
    except Refusal as refusal:
        # Drop the traceback: it references this frame.
        refused = (await _cause_of(refusal, request.runtime)).with_traceback(None)
    is_recording = request.runtime.telemetry.is_recording()
    with _recorded(request, message, plan, refused) if is_recording else nullcontext():
        if refused is not None:
            await refuse(request, plan, refused, dialects)
        elif plan.answers is not None:
            await reply(request, message, plan.answers)
        else:
            await forward(request, plan, dialects)


def concerns_session(dialects: Dialects, rules: Rules, message: Message) -> bool:
    """Return whether a message needs or carries a session, or is a method of a dialect."""
    return is_required_by(rules.policy, message) or any(concerns(message) for concerns in dialects.concerns)


async def open_sessions(request: Request, plan: Plan) -> Session | None:
    """Open what identifies the request's session, and then check what stands beside it, which only its owner learns."""
    opened = [
        await credential.dialect.open(request, credential, fail_open=plan.fail_open) for credential in plan.credentials
    ]
    request.beside = tuple(session._claims for session in opened[1:] if session is not None)
    return opened[0]


async def _cause_of(refusal: Refusal, runtime: Runtime) -> Refusal:
    """Return why a request is refused: it may lack a session because the store is unavailable."""
    if refusal.code == SessionRequired.code and runtime.store_fault is not None:
        try:
            await runtime.store.statuses(())
        except StoreUnavailable as error:
            return error
    return refusal


async def handle_unparsed(
    request: Request, refusal: Refusal | None, concerns: Callable[[Message], bool] | None = None
) -> None:
    """Refuse what could be read in two ways, or forward what holds no message that concerns a session."""
    may_pass = refusal is not None and refusal.reason == NOT_JSONRPC and not request.at_endpoint
    if may_pass and concerns is not None and not may_evade(request.body, concerns):
        refusal = None  # the path serves other things, too
    if refusal is None and request.headers.session_id is not None:
        refusal = refusal_for("session_header_alone")
    if refusal is not None:
        await send_refusal_without_id(request, refusal)
    else:
        await forward(request)


async def refuse(request: Request, plan: Plan, refusal: Refusal, dialects: Dialects) -> None:
    """Answer a message with the error that its session, or the lack of one, deserves."""
    if await preflight(request, request.admitting_statuses):
        if refusal.code == SessionRequired.code and not request.is_own_page:  # which neither of them sees
            explain({MISSING_SESSION_KEY: _missing_session(request, request.message, dialects)})
        own = plan.credentials[0].dialect if plan.credentials else None
        await send_refusal(request, refusal, None if own is None else await own.refuse(request, refusal))


async def reply(request: Request, message: Message, answers: Answers) -> None:
    """Answer a request by a dialect's method, which is not called for a caller that the server does not admit."""
    if not await preflight(request):
        return
    refused, result = None, dict[str, Any]()
    try:
        result = await answers.method(request)
    except Refusal as refusal:
        refused = refusal.with_traceback(None)
    if refused is not None:
        if request.session is not None and refused.ref is None:
            refused.ref = request.session.ref
        await send_refusal(request, refused)
        return
    members = {"resultType": "complete", **result} if request.headers.is_modern else result
    repeated = {name: result[name] for name in answers.repeated}
    await respond(request.send, 200, rewrite.result(message.id or NULL_ID, members, repeated))


async def forward(request: Request, plan: Plan = FORWARD_UNCHANGED, dialects: Dialects | None = None) -> None:
    """Call the application: whatever is forwarded of a POST passes here.

    In an answer that nothing changes or observes, only event ids are signed. The body as it came is in no variable of
    this frame, nor of those around it: error reporters print the variables of every frame.
    """
    message, attached, response = request.message, None, None
    if message is None or dialects is None:
        request.outgoing = request.body
    else:
        response = response_for(request, message, plan, dialects)
        if request.session is not None and request.attaches:
            attached = request.session
            attached._answered = message.kind is not REQUEST
            if (listen := request.runtime.telemetry.listen) is not None:
                call_observer("listen=", listen, SessionUsed(attached.ref, message.label))
        if message.method == CANCELLED and message.kind is NOTIFICATION and "requestId" in message.all_params:
            ref = None if request.session is None else request.session.ref
            request.runtime.streams.cancel(ref, request.server_id, bytes(message.all_params["requestId"]))
        await prepare_message(request, message, attached, dialects)
    shown = shown_variable.set(_expose_session(request, message, attached, dialects))
    try:
        await call_app(request, response)
    except Exception as error:
        set_scope_session(request.scope, None)  # what handles the error has no session
        if (
            message is None
            or response is None
            or response.outgoing.state not in UNSENT
            or not isinstance(error, StoreUnavailable)
        ):
            raise
        error.ref = error.ref or (None if request.session is None else request.session.ref)
        await response.refuse(error)
    finally:
        shown_variable.reset(shown)
        if message is not None and message.method == INITIALIZE:  # FastMCP's task of a connection keeps the scope
            set_scope_session(request.scope, None)
        close_session(response, request.session)


async def call_app(request: Request, response: Response | None) -> None:
    """Call the application, and return or raise as it does, once its response has ended if its session has."""
    receive = replay(request.outgoing, request.receive)
    if response is None:
        await request.app(request.scope, receive, signing_send(request))
        return
    response.enlist()
    try:
        await request.app(request.scope, receive, response.send)
    except Exception:
        await response.finish()
        raise
    await response.finish()


def _expose_session(
    request: Request, message: Message | None, attached: Session | None, dialects: Dialects | None
) -> dict[str, Any]:
    """Show the session, or why there is none, on the scope; return what is shown by the context variable."""
    set_scope_session(request.scope, attached)
    # Servers start the task that serves a whole connection in `initialize`, so do not leak per-request values into it.
    is_handshake = message is not None and message.method == INITIALIZE
    if attached is not None and not is_handshake:
        return {"mcp_session": attached}
    request.scope[MISSING_SESSION_KEY] = missing = _missing_session(request, message, dialects)
    correlation = None if is_handshake else request.scope.get("mcp_correlation")
    return {MISSING_SESSION_KEY: missing, "mcp_correlation": correlation}


def set_scope_session(scope: Scope, session: Session | None) -> None:
    """Put the session where applications look for it."""
    scope["mcp_session"] = scope.setdefault("state", {})["mcp_session"] = session


async def prepare_message(request: Request, message: Message, attached: Session | None, dialects: Dialects) -> None:
    """Make the body that the application gets: without credentials, and with our trace context."""
    request.outgoing = message.body
    for prepare in reversed(dialects.prepare):
        await prepare(request)
    if request.outgoing is not message.body:
        request.set_content_length(request.outgoing)
    if request.runtime.correlate and message.kind is not RESPONSE:
        record_correlation(request, attached)
    if request.telemetry is not None:
        request.outgoing = request.carry_trace(request.outgoing, request.telemetry.traceparent)


def response_for(request: Request, message: Message, plan: Plan, dialects: Dialects) -> Response | None:
    """Return what changes or observes the response on its way out, or None if nothing does."""
    observer, session = request.telemetry, request.session
    changes = changes_for(request, message, plan, dialects) if message.kind is REQUEST else ()
    ends_with_session = session is not None and message.kind is REQUEST
    if not changes and not ends_with_session and observer is None:
        return None
    caller_scope = dict(request.scope)
    if not changes and not ends_with_session:
        return Response(request, request.send, observer=observer, passes_body=True, caller_scope=caller_scope)
    request.demand_whole_answer()
    response = Response(
        *(request, request.send, message.id or b"", message),
        changes=changes,
        observer=observer,
        caller_scope=caller_scope,
    )
    if session is not None:
        response.call = Call(session._claims, message.id, message.label, request.server_id, session=session)
        response.call.beside = request.beside
        response.recheck_at = session._recheck_at
    return response


def changes_for(request: Request, message: Message, plan: Plan, dialects: Dialects) -> Sequence[Change]:
    """Return what the answer to a request needs, in this order; a handshake may begin a session of any dialect."""
    own = plan.credentials[0].dialect if plan.credentials and plan.action in _ECHOING else None
    session = request.session if own is not None else None
    if message.method not in HANDSHAKES:
        return () if own is None or session is None else own.changes(request, session)
    request.read_caller()  # a session may begin with the answer
    request.is_reached = any(reaches(request) for reaches in dialects.reaches)
    changes: list[Change] = [dialects.advertise]
    for dialect in reversed(dialects.all):
        changes += dialect.changes(request, session if dialect is own else None)
    return changes


def _missing_session(request: Request, message: Message | None, dialects: Dialects | None) -> MissingSession | None:
    if message is not None and (message.kind is not REQUEST or message.method in SESSIONLESS):
        return None
    runtime, headers, absent = request.runtime, request.headers, request.absent
    if request.session is not None:
        return MissingSession(runtime, headers, message, absent, "list")
    if request.is_unseen:
        return MissingSession(runtime, headers, message, absent, "unseen")
    absences = () if dialects is None else dialects.absence
    return MissingSession(
        runtime, headers, message, absent, absences=absences, scheme=request.scope.get("scheme", "http")
    )


@contextmanager
def _recorded(request: Request, message: Message, plan: Plan, refused: Refusal | None) -> Iterator[None]:
    """Let telemetry record a message, and observe the response to one that is not forwarded."""
    is_forwarded = refused is None and plan.answers is None
    claims = None if request.session is None else request.session._claims
    if refused is not None:
        claims = refused_claims(request, refused, *(credential.id for credential in plan.credentials))
    server_id = request.server_id if claims is None and request.upstream_id is None else None
    begin, send = request.runtime.telemetry.recorder().begin, request.send
    request.telemetry = begin(
        message, request.headers, request.scope, claims, is_forwarded=is_forwarded, server_id=server_id
    )
    if request.telemetry is not None:
        request.telemetry.store_fault = request.runtime.store_fault_since
    observed = None
    if not is_forwarded and request.telemetry is not None:
        observed = Response(request, send, observer=request.telemetry, passes_body=True, signs_ids=False)
        request.send = observed.send
    try:
        with request.telemetry or nullcontext():
            yield
    finally:
        request.send = send
        close_session(observed, None)
