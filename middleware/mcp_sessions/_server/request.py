"""The path of a request, station by station: read its credentials and its message, decide, open its session, and then
refuse it, answer it, or forward it to the wrapped application.

What happens to a message is decided in `decide`, from a table; how its session is identified, and what its answer
needs, is up to the dialects. `unread` has what requests without a body need.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from starlette.types import Scope

from .._dialects.base import Answers, Dialects
from .._errors import Refusal, SessionRequired, StoreUnavailable
from .._protocol import rewrite
from .._protocol.jsonrpc import NOTIFICATION, REQUEST, RESPONSE, Batch, Message, parse
from .._protocol.lenient import may_evade
from .._protocol.methods import CANCELLED, HANDSHAKES, INITIALIZE, SESSIONLESS, TOOLS
from .._refusals import NOT_JSONRPC
from .._refusals import refusal as refusal_for
from .._session.session import Session, shown_variable
from .answers import NULL_ID, preflight, refuse_unread, respond, send_refusal
from .body import peek, read_body
from .context import Request, record_correlation
from .current import LISTS, MISSING_SESSION_KEY, UNSEEN, MissingSession, explain
from .decide import FORWARD_UNCHANGED, Action, Plan, Rules, decide
from .event_ids import signing_send
from .observers import UNWATCHED, Watched, Watching
from .response import Change, Response, close_session
from .resumption import Call
from .routing import WITHOUT_BODY
from .runtime import Runtime
from .sessions import RECHECK_AFTER, refused_claims
from .unread import decide_unread, find_stream

_ECHOING: Final = frozenset({Action.ATTACH, Action.ECHO})


async def serve(request: Request, rules: Rules) -> None:
    """Serve one request to the endpoint.

    Before the middleware itself answers, the wrapped server has to admit the caller (`answers.preflight`).
    """
    plan, refused = FORWARD_UNCHANGED, None
    # Servers pass on a method as sent, and Django and httpx change it: from here on everybody reads the same one.
    request.scope["method"] = request.scope["method"].upper()
    try:
        extract_credentials(request, rules.dialects)
        await read_message(request, rules)
        plan = decide_unread(request, rules.dialects) if request.message is None else decide(request, rules)
        await open_sessions(request, plan)
        if request.message is None:
            plan = await find_stream(request, plan, rules.dialects)
    except Refusal as refusal:
        # Drop the traceback: it references this frame.
        refused = (await cause_of(refusal, request.runtime)).with_traceback(None)
    # The server is called outside of the handler: an error that it raises would show its frames, which hold what came.
    with watch(request, plan, refused) if request.runtime.observers.are_watching() else UNWATCHED:
        if refused is not None:
            await refuse(request, plan, refused, rules.dialects)
        elif plan.answers is not None:
            await reply(request, plan.answers)
        else:
            await forward(request, plan, rules.dialects)


def extract_credentials(request: Request, dialects: Dialects) -> None:
    """Let every dialect take its credentials out of the headers, and only then refuse what is wrong with any of them.

    The guards of the wrapped server may be asked about a request that is refused, and must see no credential either.
    """
    refused = None
    for extract in (Request.extract_event_id, *dialects.extract):
        try:
            extract(request)
        except Refusal as refusal:
            refused = refused or refusal
    if refused is not None:
        raise refused


async def read_message(request: Request, rules: Rules) -> None:
    """Read the body of a request that may be an MCP message.

    The request has no message if its body may pass unread, or holds no message that concerns a session.

    Raises:
        Refusal: The body is too large or comes too late, or another parser might read it differently.
    """
    if not await may_be_message(request, rules):
        return
    runtime, refused = request.runtime, None
    limits = runtime.limits
    # The body as it came is in no variable of a frame: error reporters print the variables of every frame.
    request.body = await read_body(
        request.receive, request.headers, max_bytes=limits.body_bytes, timeout=runtime.body_timeout
    )
    request.outgoing, request.has_body = request.body, True
    try:
        request.message = parse(request.body, limits.batch, limits.nesting)
    except Batch as batch:  # forwarded unmodified, so refuse any that concerns a session
        refused = refusal_for("batch") if any(map(rules.concern, batch.items)) else None
    except Refusal as refusal:
        may_pass = refusal.reason == NOT_JSONRPC and not request.at_endpoint  # the path serves other things, too
        refused = None if may_pass and not may_evade(request.body, rules.concern) else refusal
    if request.message is None and refused is None and request.headers.session_id is not None:
        refused = refusal_for("session_header_alone")
    if refused is not None:
        raise refused
    if (message := request.message) is not None:
        request.check_principal()
        for before in rules.dialects.before.get(message.method, ()):
            await before(request)


async def may_be_message(request: Request, rules: Rules) -> bool:
    """Return True if the body of a request has to be read, since it may be an MCP message."""
    method = request.scope["method"]
    if not (method == "POST" or (rules.reads_everything and method not in WITHOUT_BODY)):
        return False
    if request.at_endpoint or request.headers.is_json:  # some servers read JSON of any type
        return True
    if not rules.reads_everything:
        return False
    may_be_json, request.receive = await peek(request.receive)
    return may_be_json


async def open_sessions(request: Request, plan: Plan) -> None:
    """Open what identifies the request's session, and then check what stands beside it, which only its owner learns.

    A session is created last: the wrapped server is asked before, and may know the caller by what stands beside it.
    """
    if not plan.credentials:
        return
    own, *beside = plan.credentials
    if not own.creates:
        request.session = await own.dialect.open(request, own, fail_open=plan.fail_open)
    if beside:
        opened = [await one.dialect.open(request, one, fail_open=plan.fail_open) for one in beside]
        request.beside = tuple(session._claims for session in opened if session is not None)
    if own.creates:
        request.session = await own.dialect.open(request, own, fail_open=plan.fail_open)


async def cause_of(refusal: Refusal, runtime: Runtime) -> Refusal:
    """Return why a request is refused: it may lack a session because the store is unavailable."""
    if refusal.code == SessionRequired.code and runtime.store_fault is not None:
        try:
            await runtime.rechecks.ask()
        except StoreUnavailable as error:
            return error
    return refusal


async def refuse(request: Request, plan: Plan, refused: Refusal, dialects: Dialects) -> None:
    """Answer a request with the error that its session, or the lack of one, deserves."""
    if request.message is None:
        await refuse_unread(request, refused)
    elif await preflight(request, request.admitting_statuses):
        if refused.code == SessionRequired.code and not request.is_own_page:  # which neither of them sees
            explain({MISSING_SESSION_KEY: missing_session(request, request.message, dialects)})
        own = plan.credentials[0].dialect if plan.credentials else None
        if own is None:
            await send_refusal(request, refused)
        else:
            await send_refusal(request, refused, await own.refuse(request, refused), own.result_of(request, refused))


async def reply(request: Request, answers: Answers) -> None:
    """Answer a request by a dialect's method, which is not called for a caller that the server does not admit."""
    if request.message is None:
        await answers.method(request)  # which sends the answer itself
        return
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
    await respond(request.send, 200, rewrite.result(request.message.id or NULL_ID, members, repeated))


async def forward(request: Request, plan: Plan, dialects: Dialects) -> None:
    """Call the application: whatever is forwarded passes here.

    In an answer that nothing changes or observes, only event ids are signed.
    """
    message, attached = request.message, request.session if request.attaches else None
    response = response_for(request, plan, dialects)
    if message is not None:
        note_use(request, message, attached)
        await prepare_message(request, message, attached, dialects)
    if response is not None or request.outgoing is not request.body:
        request.prepare_headers(wants_whole=response is not None and not response.passes_body)
    shown = shown_variable.set(expose_session(request, message, attached, dialects))
    try:
        send = signing_send(request) if response is None else response.begin()
        await request.app(request.scope, request.receive_body, send)
    except Exception as error:
        if attached is not None:
            set_scope_session(request.scope, None)  # what handles the error has no session
        if response is None or not await response.fail(error):
            raise
    else:
        if response is not None:
            await response.finish()
    finally:
        shown_variable.reset(shown)
        if attached is not None and request.current_message.method == INITIALIZE:  # whose scope FastMCP's task keeps
            set_scope_session(request.scope, None)
        if response is not None or request.session is not None:
            close_session(response, request.session)


def note_use(request: Request, message: Message, attached: Session | None) -> None:
    """Report that a session is used, and settle the call that a message cancels."""
    if attached is not None:
        attached._answered = message.kind is not REQUEST
        if not attached._is_pending:
            request.runtime.observers.used(attached, message)
    if message.method == CANCELLED and message.kind is NOTIFICATION and "requestId" in message.all_params:
        ref = None if request.session is None else request.session.ref
        request.runtime.streams.cancel(ref, request.server_id, bytes(message.all_params["requestId"]))


async def prepare_message(request: Request, message: Message, attached: Session | None, dialects: Dialects) -> None:
    """Make the body that the application gets: without credentials, and with our trace context."""
    for prepare in reversed(dialects.prepare):
        await prepare(request)
    if request.runtime.correlate and message.kind is not RESPONSE:
        record_correlation(request, attached)
    if (traceparent := request.watch.traceparent) is not None:
        request.outgoing = rewrite.with_trace(request.outgoing, traceparent)


def expose_session(
    request: Request, message: Message | None, attached: Session | None, dialects: Dialects
) -> dict[str, Any]:
    """Put the session, or what explains its absence, on the scope; return the same for the context variable."""
    if message is None and not request.has_body:  # the scope says that the middleware did not see a message
        request.scope[MISSING_SESSION_KEY] = None
        return {MISSING_SESSION_KEY: None}
    set_scope_session(request.scope, attached)
    # Servers start the task that serves a whole connection in `initialize`, so do not leak per-request values into it.
    is_handshake = message is not None and message.method == INITIALIZE
    if attached is not None and not is_handshake:
        return {"mcp_session": attached}
    request.scope[MISSING_SESSION_KEY] = missing = missing_session(request, message, dialects)
    correlation = None if is_handshake else request.scope.get("mcp_correlation")
    return {MISSING_SESSION_KEY: missing, "mcp_correlation": correlation}


def set_scope_session(scope: Scope, session: Session | None) -> None:
    """Set the session that applications find on the scope."""
    scope["mcp_session"] = scope.setdefault("state", {})["mcp_session"] = session


def response_for(request: Request, plan: Plan, dialects: Dialects) -> Response | None:
    """Return what changes or observes the response on its way out, or None if nothing does."""
    message, session = request.message, request.session
    if message is None:
        return None if request.call is None else stream_response(request, request.call)
    changes = changes_for(request, message, plan, dialects) if message.kind is REQUEST else ()
    if changes or (session is not None and message.kind is REQUEST):
        response = Response(request, request.send, message.id or b"", message, changes=changes, watch=request.watch)
        if session is None:
            response.caller_scope = dict(request.scope)
        else:
            sessions = (session._claims, *request.beside)
            response.call = Call(sessions, message.id, message.label, request.server_id, session=session)
            response.recheck_at = session._recheck_at
        return response
    if request.watch is UNWATCHED:
        return None
    return Response(request, request.send, watch=request.watch, passes_body=True, caller_scope=dict(request.scope))


def stream_response(request: Request, call: Call) -> Response:
    """Return what signs the event ids of a stream that a GET listens to, and ends it with its session."""
    recheck_at = request.runtime.clock() + RECHECK_AFTER
    return Response(request, request.send, call.id or b"", call=call, recheck_at=recheck_at, changes=call.changes)


def changes_for(request: Request, message: Message, plan: Plan, dialects: Dialects) -> Sequence[Change]:
    """Return what the answer to a request needs, in this order; a handshake may begin a session of any dialect."""
    own = plan.credentials[0].dialect if plan.credentials and plan.action in _ECHOING else None
    session = request.session if own is not None else None
    if message.method not in HANDSHAKES:
        changes = () if own is None or session is None else own.changes(request, session)
        if message.method != TOOLS or not dialects.change_tools:
            return changes
        return (*changes, *(change(request) for change in dialects.change_tools))
    handshake: list[Change] = [dialects.advertise]
    for dialect in reversed(dialects.all):
        handshake += dialect.changes(request, session if dialect is own else None)
    return handshake


def missing_session(request: Request, message: Message | None, dialects: Dialects) -> MissingSession | None:
    """Return what explains why a request has no session, or None if it is not expected to have one."""
    if message is not None and (message.kind is not REQUEST or message.method in SESSIONLESS):
        return None
    known = LISTS if request.session is not None else UNSEEN if request.is_unseen else None
    scheme = request.scope.get("scheme", "http")
    return MissingSession(*(request.runtime, request.headers, message, known, request.absent, dialects.absence, scheme))


def watch(request: Request, plan: Plan, refused: Refusal | None) -> Watching:
    """Let observers watch a request from now on."""
    runtime, message = request.runtime, request.message
    session = request.session
    claims = request.claims if session is None or session._is_pending else session._claims
    if refused is not None:
        ids = [request.headers.session_id] if message is None else [credential.id for credential in plan.credentials]
        claims = refused_claims(request, refused, *ids)
    server_id = request.server_id if claims is None and request.upstream_id is None else None
    is_forwarded = refused is None and plan.answers is None
    watched = Watched(
        *(message, request.headers, request.scope, claims, server_id, is_forwarded, refused, request.arrived_at),
        store_fault=runtime.store_fault_since,
    )
    request.watch = runtime.observers.watch(watched)
    return request.watch
