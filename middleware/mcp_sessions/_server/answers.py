"""The answers that are ours: the results of methods about sessions, and every refusal.

What we answer never reaches the wrapped server's own guards, which must be neither skipped nor copied. So the caller's
request is forwarded once as `ping` or `server/discover`: a success, or "method not found" with the caller's id, lets
it in; any other answer goes to the caller as it came. An expired access token must give 401 here, never "Session not
found", or the client throws its session away.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from http import HTTPStatus
from secrets import token_hex
from typing import Any, Final

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.types import Message as ASGIMessage

from .._errors import Refusal, SessionNotFound
from .._protocol import decision, rewrite
from .._protocol.cookies import DISCOVER
from .._protocol.draft import INITIALIZE, speaks_draft
from .._protocol.headers import METHOD, SESSION_HEADER, VERSION, Header, edit, runtime_without_cookies
from .._protocol.jsonrpc import REQUEST, Message
from .._protocol.sep1364 import FIELD_NAME, TERMINATE
from .._protocol.sse import EventStream
from .._protocol.strict_json import join, members
from .._refusals import INVALID_PARAMS
from .._session.claims import Claims, RedactedRepr
from ..telemetry._core import is_traced
from .body import replay
from .context import BridgedInitialize, RequestContext, session_header_values
from .current import without_session
from .event_ids import signing_send
from .minting import new_cookie
from .sessions import refused_claims

Method = Callable[[RequestContext, Message], Awaitable[dict[str, Any]]]
_MISSING_SESSION: Final = frozenset({400, 404})  # what a stateful server answers, past its guards, to one without an id
_JSON: Final = (b"content-type", b"application/json")
_NO_STORE: Final = (b"cache-control", b"no-store")  # an answer may hold a credential, and caches know no sessions
_CLOSE: Final = (b"connection", b"close")
_UNFINISHED: Final = frozenset({408, 413})
"""What is answered before the body has arrived: the rest would hold the connection for as long as its client likes."""
_DROPPED: Final = frozenset(
    {b"content-length", b"transfer-encoding", b"accept-encoding", b"mcp-method", b"mcp-name"}
    | {b"traceparent", b"tracestate"}
)
_METHOD_NOT_FOUND: Final = b"-32601"
_INITIALIZE: Final = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "mcp-sessions", "version": "0"},
}
_SPEAKS_OTHERWISE: Final = frozenset({b"-32601", b"-32602", b"-32022"})
"""Errors by which a server refuses `initialize` itself: unknown method, wrong params, unsupported version."""
_log: Final = logging.getLogger("mcp_sessions")
NULL_ID: Final = b"null"  # the id of a question that has none, such as a DELETE


async def respond_to_session_method(ctx: RequestContext, message: Message, method: Method) -> None:
    """Answer a request of ours by its method, which is not called for a caller that the server does not admit."""
    if not await preflight(ctx, message):
        return
    session = ctx.session
    try:
        result = await method(ctx, message)
    except Refusal as refusal:
        if session is not None and refusal.ref is None:
            refusal.ref = session.claims.ref
        await send_refusal(ctx, message, refusal)
        return
    request_id = message.id or NULL_ID
    body = rewrite.result(request_id, {"resultType": "complete", **result} if ctx.headers.is_modern else result)
    if FIELD_NAME in result:
        body = rewrite.with_field(body, request_id, result[FIELD_NAME]) or body
    await respond(ctx.send, 200, body)
    is_ended = session is not None and session.ended_by_own_request
    if is_ended and message.method == TERMINATE and ctx.server_id is not None:
        await end_upstream(ctx.app, ctx.scope, ctx.receive)  # which has begun with the one that is ended so


async def refuse(ctx: RequestContext, message: Message, refusal: Refusal, *, by_cookie: bool) -> None:
    """Answer a message with the error that its session, or the lack of one, deserves.

    A dead cookie is renewed at once, since its client does not know that it has one.
    """
    if await preflight(ctx, message, _extra_statuses(ctx)):
        is_dead = by_cookie and isinstance(refusal, SessionNotFound)
        await send_refusal(ctx, message, refusal, await new_cookie(ctx, message) if is_dead else None)


async def send_refusal(ctx: RequestContext, message: Message, refusal: Refusal, header: Header | None = None) -> None:
    """Answer a message whose sender the server has admitted."""
    status = refusal.http_status
    if message.kind is not REQUEST:  # nothing carries a code there, so the status must be an error
        status = max(status, 400)
    elif refusal.code == INVALID_PARAMS[0] and not ctx.headers.is_modern:
        status = 200  # handshake-era clients raise on a 4xx and lose the code that says what to mend
    await respond(ctx.send, status, ctx.refusal_body(message, refusal), refusal.retry_after, header)


async def send_refusal_without_id(
    ctx: RequestContext, refusal: Refusal, claims: Claims | None = None, label: str | None = None
) -> None:
    """Answer what has no id to answer to: a body that others might read otherwise, or no body at all."""
    record_unparsed_refusal(ctx, refusal, claims or refused_claims(ctx, refusal, ctx.headers.session_id), label)
    # HTTP/2 and later have no such header.
    closes = refusal.http_status in _UNFINISHED and ctx.scope.get("http_version", "1.1").startswith("1")
    body = rewrite.error(None, refusal.code, refusal.client_message)
    await respond(ctx.send, refusal.http_status, body, refusal.retry_after, _CLOSE if closes else None)


def record_unparsed_refusal(
    ctx: RequestContext, refusal: Refusal, claims: Claims | None, label: str | None = None
) -> None:
    """Record that a request without a message is refused."""
    ctx.record_refused(refusal, label)
    telemetry = ctx.runtime.telemetry
    if telemetry.is_recording():
        telemetry.recorder().refuse_request(refusal, claims, ctx.scope)


async def refuse_unread(ctx: RequestContext, refusal: Refusal) -> None:
    """Answer a request that is refused for its session header or its body, in which no message was read."""
    if ctx.scope["method"] != "DELETE" or await may_delete(ctx, _extra_statuses(ctx)):
        await send_refusal_without_id(ctx, refusal)


async def respond(
    send: Send, status: int, body: bytes, retry_after: int | None = None, header: Header | None = None
) -> None:
    """Send a JSON answer of our own, with the seconds after which it may be tried again, and one more header."""
    headers = [_JSON, (b"content-length", join(len(body))), _NO_STORE]
    if retry_after is not None:
        headers.append((b"retry-after", b"%d" % retry_after))
    if header is not None:
        headers.append(header)
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def send_status(send: Send, status: int, *more: tuple[bytes, bytes]) -> None:
    """Send a status and nothing else."""
    headers = [(b"content-length", b"0"), _NO_STORE, *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


def _extra_statuses(ctx: RequestContext) -> frozenset[int]:
    """Return the server's statuses after which our refusal is still sent: this client's id never reaches the server."""
    names_unknown = ctx.runtime.transport.bridges and not ctx.bridge and ctx.headers.all(SESSION_HEADER)
    return _MISSING_SESSION if names_unknown else frozenset()


async def preflight(ctx: RequestContext, message: Message, extra_statuses: frozenset[int] = frozenset()) -> bool:
    """Ask the wrapped server whether it serves this caller; if not, send the caller its answer and return False."""
    version = ctx.headers.modern_version
    if version is not None and message.kind is REQUEST:
        try:
            decision.check_envelope(message, version=version, methods=ctx.headers.all(METHOD))
        except Refusal as refusal:
            await send_refusal(ctx, message, refusal)
            return False
    if not ctx.runtime.preflight:
        return True
    recorder = await _ask_to_admit(ctx, message)
    if recorder.allowed or recorder.status in extra_statuses:
        return True
    await recorder.relay(ctx)
    return False


async def admits(ctx: RequestContext, message: Message) -> bool:
    """Whether the wrapped server would serve the caller, as far as that has to be asked; nothing is answered."""
    return not ctx.runtime.preflight or (await _ask_to_admit(ctx, message)).allowed


async def _ask_to_admit(ctx: RequestContext, message: Message) -> ResponseRecorder:
    """Return what the wrapped server answers to the caller's request as `ping` or `server/discover`."""
    version = ctx.headers.modern_version
    method = "ping" if version is None else "server/discover"
    # A server that keeps transport sessions mixes up what comes with one id at a time.
    request_id = message.id or b'"admission-%b"' % token_hex(8).encode()
    body = rewrite.ping(message, request_id, method)
    question = probe_scope(ctx.scope, body)
    if version is not None:
        question["headers"].append((b"mcp-method", method.encode()))
    recorder = ResponseRecorder(request_id)
    await probe_app(ctx.app, question, replay(body, ctx.receive), recorder)
    return recorder


async def may_delete(ctx: RequestContext, extra_statuses: frozenset[int]) -> bool:
    """Whether the wrapped server would let this caller end something; where not, the caller has been answered."""
    if not ctx.runtime.preflight and ctx.bridge is None:
        return True
    recorder = ResponseRecorder(NULL_ID)
    headers = edit(ctx.scope["headers"], drop=(SESSION_HEADER,))  # ours, also where it is given twice
    await probe_app(ctx.app, {**probe_scope(ctx.scope, b""), "headers": headers}, ctx.receive, recorder)
    # It did, or it only lacks the method.
    allows = recorder.status in range(200, 300) or recorder.status == HTTPStatus.METHOD_NOT_ALLOWED
    if allows or recorder.status in extra_statuses:
        return True
    await recorder.relay(ctx)
    return False


async def notify(ctx: RequestContext, method: str) -> None:
    """Send the wrapped server a notification on behalf of the caller; its answer is dropped."""
    body = rewrite.notification(method)
    await probe_app(ctx.app, probe_scope(ctx.scope, body), replay(body, ctx.receive), ResponseRecorder(NULL_ID))


async def end_upstream(app: ASGIApp, scope: Scope, receive: Receive, server_id: str | None = None) -> None:
    """End the wrapped server's own session, of this id or of the scope's headers; the answer is dropped."""
    question = probe_scope(scope, b"")
    named = [] if server_id is None else [(SESSION_HEADER, server_id.encode("latin-1"))]
    question["headers"] = edit(question["headers"], drop=(b"content-type", b"content-length"), add=named)
    await probe_app(app, {**question, "method": "DELETE"}, replay(b"", receive), ResponseRecorder(NULL_ID))


async def probe_app(app: ASGIApp, question: Scope, receive: Receive, recorder: ResponseRecorder) -> None:
    """Ask the wrapped server, in no trace: it is not its client who asks."""
    quiet: AbstractContextManager[None] = nullcontext()
    if is_traced():
        from ..telemetry._frameworks import untraced

        quiet = untraced(question)
    with quiet, without_session(question):
        await app(question, receive, recorder.send)


def probe_scope(scope: Scope, body: bytes) -> Scope:
    """Return a copy of a caller's scope with headers for another body and another method."""
    headers = edit(scope["headers"], drop=_DROPPED, add=((b"content-length", join(len(body))),))
    return dict(scope, mcp_session=None, state=dict(scope.get("state", ()), mcp_session=None), headers=headers)


# --- the legacy era, where a header names sessions, for clients on runtimes without cookies ---


async def leads_to_legacy(ctx: RequestContext, message: Message) -> bool:
    """Whether a message is the `server/discover` of a client that gets a session in the legacy era only.

    Refused as a legacy server refuses it, every such client that was tried falls back. The server is asked before, once
    per process and in the name of the caller, whether `initialize` leads anywhere: its discover result does not say.
    """
    if message.method != DISCOVER or message.kind is not REQUEST or not ctx.headers.is_modern:
        return False
    runtime, product = ctx.runtime, runtime_without_cookies(ctx.headers)
    if product is None or speaks_draft(message):
        return False
    if runtime.serves_legacy is None:
        runtime.serves_legacy = await _serves_legacy(ctx)
    if runtime.serves_legacy and product not in runtime.led_to_legacy:
        runtime.led_to_legacy.add(product)
        _log.info('era="auto": clients on %s keep no cookies, so they are led to the legacy era', product)
    return runtime.serves_legacy is True


async def _serves_legacy(ctx: RequestContext) -> bool | None:
    """Ask whether `initialize` begins a session of ours; None unless the server itself says yes or no.

    Guards answer a caller that they do not admit in any way: with 421 for a wrong `Host`, with a page, with a redirect.
    """
    request_id = b'"era-%b"' % token_hex(8).encode()
    body = join({"jsonrpc": "2.0", "id": msgspec.Raw(request_id), "method": INITIALIZE, "params": _INITIALIZE})
    question, recorder = probe_scope(ctx.scope, body), ResponseRecorder(request_id)
    question["headers"] = edit(question["headers"], drop=(VERSION, SESSION_HEADER))
    ctx.bridge = BridgedInitialize(is_orphaned=True)  # by which a session that begins is ended at once
    await probe_app(ctx.app, question, replay(body, ctx.receive), recorder)
    ctx.bridge = None
    if not recorder.succeeded:
        return False if recorder.error_code in _SPEAKS_OTHERWISE else None
    transport = ctx.runtime.transport
    own = [value for start in recorder.messages[:1] for value in session_header_values(start)]
    if own:  # the server keeps transport sessions, and a client gets none of ours beside them
        await end_upstream(ctx.app, question, ctx.receive, own[0])
    return not own and (transport.header or transport.bridges)


class ResponseRecorder(RedactedRepr, msgspec.Struct):
    """A `send` that keeps what the server answers, to be judged and, if need be, passed on as it came."""

    request_id: bytes  # that was asked with, as JSON
    messages: list[ASGIMessage] = []  # each struct gets its own

    async def send(self, message: ASGIMessage) -> None:
        self.messages.append(message)

    @property
    def allowed(self) -> bool:
        """Whether the server would serve this caller: it succeeded, or it only lacks the method."""
        return self.succeeded or self.error_code == _METHOD_NOT_FOUND

    @property
    def succeeded(self) -> bool:
        """Whether the server has answered with a success."""
        return any(rewrite.is_answer(text, self.request_id) for text in self._texts())

    @property
    def error_code(self) -> bytes | None:
        """The code of the error with which the server has answered, as JSON text, or None."""
        return next((code for code in map(self._code, self._texts()) if code is not None), None)

    def _texts(self) -> Iterator[bytes]:
        """Yield what may be the answer: the body, or the data of its events."""
        body = b"".join(message.get("body", b"") for message in self.messages)
        yield body
        yield from (event.data or b"" for event in EventStream(max_event_bytes=len(body) + 1).feed(body))

    @property
    def status(self) -> int:
        """HTTP status; 500 where the server sent none."""
        return next((message["status"] for message in self.messages if "status" in message), 500)

    def _code(self, text: bytes) -> bytes | None:
        try:
            message = members(text)
            is_ours = rewrite.same_id(bytes(message["id"]), self.request_id)
            return bytes(members(bytes(message["error"]))["code"]) if is_ours else None
        except (Refusal, KeyError):
            return None

    async def relay(self, ctx: RequestContext) -> None:
        """Give the caller the server's answer as it came, but for event ids."""
        send = signing_send(ctx)
        for message in self.messages:
            await send(message)
