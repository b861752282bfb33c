"""The middleware's own answers: the results of methods about sessions, and every refusal.

A request that the middleware answers does not reach the wrapped server's own checks, such as authentication. So the
middleware first asks the wrapped server with the caller's headers, as `ping` or `server/discover`. If that succeeds, or
its error is "method not found", the caller is admitted; any other answer is passed on to the caller. An expired access
token must get 401, never "Session not found", or the client discards its session.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from http import HTTPStatus
from secrets import token_hex
from types import MappingProxyType
from typing import Any, Final

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.types import Message as ASGIMessage

from .._errors import Refusal, SessionNotFound
from .._protocol import rewrite
from .._protocol.envelope import check_envelope
from .._protocol.headers import EVENTS, METHOD, SESSION_HEADER, Header, edit
from .._protocol.jsonrpc import REQUEST
from .._protocol.methods import DISCOVER, PING
from .._protocol.sse import EventStream
from .._protocol.strict_json import join, members
from .._refusals import INVALID_PARAMS
from .._session.claims import RedactedRepr
from ..telemetry._core import is_traced
from .body import replay
from .context import Request, error_data, session_header_values
from .current import without_session
from .event_ids import signing_send
from .observers import UNWATCHED

_JSON: Final = (b"content-type", b"application/json")
_ACCEPTED: Final = (b"accept", b"application/json, text/event-stream")
_NO_STORE: Final = (b"cache-control", b"no-store")  # an answer may hold a credential, and caches know no sessions
_CLOSE: Final = (b"connection", b"close")
_UNFINISHED: Final = frozenset({408, 413})
"""Statuses that are sent before the body has arrived. Waiting for its rest would let the client hold the connection."""
_DROPPED: Final = frozenset(
    {b"content-length", b"transfer-encoding", b"accept-encoding", b"mcp-method", b"mcp-name"}
    | {b"traceparent", b"tracestate"}
)
_METHOD_NOT_FOUND: Final = b"-32601"
_SPEAKING: Final = frozenset({*range(200, 300), 400, 404})
"""Statuses with which a server answers a message itself. Any other comes from a check that refuses the caller."""
NULL_ID: Final = b"null"  # the id of a probe that has none, such as a DELETE


async def send_refusal(
    request: Request, refusal: Refusal, header: Header | None = None, result: Mapping[str, Any] | None = None
) -> None:
    """Answer a message whose sender the server has admitted: with an error, or with a result that says the same."""
    if result is not None:
        request.refusal_body(refusal)  # which records it
        await respond(request.send, 200, rewrite.result(request.current_message.id or NULL_ID, result))
        return
    status = refusal.http_status
    if request.current_message.kind is not REQUEST:  # nothing carries a code there, so the status must be an error
        status = max(status, 400)
    elif refusal.code == INVALID_PARAMS[0] and not request.headers.is_modern:
        status = 200  # handshake-era clients raise on a 4xx and lose the code that says what to mend
    await respond(request.send, status, request.refusal_body(refusal), refusal.retry_after, header)


async def send_refusal_without_id(request: Request, refusal: Refusal) -> None:
    """Answer a request without an id: it has no body, or one that another parser might read differently."""
    record_unparsed_refusal(request, refusal, request.label)
    # HTTP/2 and later have no such header.
    closes = refusal.http_status in _UNFINISHED and request.scope.get("http_version", "1.1").startswith("1")
    body = rewrite.error(None, refusal.code, refusal.client_message)
    await respond(request.send, refusal.http_status, body, refusal.retry_after, _CLOSE if closes else None)


def record_unparsed_refusal(request: Request, refusal: Refusal, label: str | None) -> None:
    """Record that a request without a message is refused."""
    request.record_refused(refusal, label)
    request.watch.refuse(refusal)


async def refuse_unread(request: Request, refusal: Refusal) -> None:
    """Answer a request that is refused without a message, because of its headers, its body or its stream."""
    method, call = request.scope["method"], request.call
    if isinstance(refusal, SessionNotFound):
        refusal.http_status = HTTPStatus.NOT_FOUND
    if method == "DELETE":
        is_admitted = await may_delete(request, request.admitting_statuses)
    else:
        is_admitted = method != "GET" or await may_listen(request)
    if is_admitted and call is not None and call.id is not None and refusal.executed:
        await refuse_call(request, refusal, call.id)
    elif is_admitted:
        await send_refusal_without_id(request, refusal)


async def refuse_call(request: Request, refusal: Refusal, request_id: bytes) -> None:
    """Answer the call of a client that was away when its session ended: clients take a status for a lost stream."""
    record_unparsed_refusal(request, refusal, request.label)
    error = rewrite.error(request_id, refusal.code, refusal.client_message, error_data(refusal))
    headers = [(b"content-type", EVENTS), _NO_STORE]
    await request.send({"type": "http.response.start", "status": 200, "headers": headers})
    await request.send({"type": "http.response.body", "body": b"data: %b\n\n" % error})


async def respond(
    send: Send, status: int, body: bytes, retry_after: int | None = None, header: Header | None = None
) -> None:
    """Send a JSON answer, with `Retry-After` and another header if they are given."""
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


async def preflight(request: Request, extra_statuses: frozenset[int] = frozenset()) -> bool:
    """Ask the wrapped server whether it serves this caller; if not, send the caller its answer and return False."""
    version, message = request.headers.modern_version, request.current_message
    if version is not None and message.kind is REQUEST:
        try:
            check_envelope(message, version=version, methods=request.headers.all(METHOD))
        except Refusal as refusal:
            await send_refusal(request, refusal)
            return False
    if not request.runtime.preflight:
        return True
    recorder = await _ask_to_admit(request)
    if recorder.allowed or recorder.status in extra_statuses:
        return True
    await recorder.relay(request)
    return False


async def admits(request: Request) -> bool:
    """Return whether the wrapped server would serve the caller. The caller gets no answer."""
    return not request.runtime.preflight or (await _ask_to_admit(request)).allowed


async def _ask_to_admit(request: Request) -> ResponseRecorder:
    """Return what the wrapped server answers to the caller's request as `ping` or `server/discover`."""
    return await ask(request, PING if request.headers.modern_version is None else DISCOVER)


async def ask(request: Request, method: str, params: Mapping[str, str] = MappingProxyType({})) -> ResponseRecorder:
    """Return what the wrapped server answers to another question of the caller's."""
    version, message = request.headers.modern_version, request.current_message
    # A server that keeps transport sessions mixes up what comes with one id at a time.
    request_id = message.id or b'"admission-%b"' % token_hex(8).encode()
    body = rewrite.build_probe(message, request_id, method, params)
    question = probe_scope(request.scope, body)
    if version is not None:
        question["headers"].append((b"mcp-method", method.encode()))
    recorder = ResponseRecorder(request_id)
    await probe_app(request.app, question, replay(body, request.receive), recorder)
    return recorder


async def may_delete(request: Request, extra_statuses: frozenset[int]) -> bool:
    """Return True if the wrapped server lets this caller send DELETE; if not, pass its answer on and return False."""
    if not request.runtime.preflight and request.upstream_id is None:
        return True
    recorder = ResponseRecorder(NULL_ID)
    headers = edit(request.scope["headers"], drop=(SESSION_HEADER,))  # the middleware's id, also if it is sent twice
    await probe_app(request.app, {**probe_scope(request.scope, b""), "headers": headers}, request.receive, recorder)
    # It did, or it only lacks the method.
    allows = recorder.status in range(200, 300) or recorder.status == HTTPStatus.METHOD_NOT_ALLOWED
    if allows or recorder.status in extra_statuses:
        return True
    await recorder.relay(request)
    return False


async def may_listen(request: Request) -> bool:
    """Return True if the wrapped server's guards admit the caller of a GET; if not, pass their answer on.

    They are asked by a POST, since a GET would open a stream.
    """
    if not request.runtime.preflight:
        return True
    recorder = ResponseRecorder(b'"admission-%b"' % token_hex(8).encode())
    body = rewrite.request(recorder.request_id, PING)
    question = probe_scope(request.scope, body)
    headers = edit(question["headers"], drop=(SESSION_HEADER, b"accept", b"content-type"), add=(_JSON, _ACCEPTED))
    await probe_app(
        request.app, {**question, "method": "POST", "headers": headers}, replay(body, request.receive), recorder
    )
    if recorder.speaks:
        return True
    await recorder.relay(request)
    return False


async def notify(request: Request, method: str) -> None:
    """Send the wrapped server a notification on behalf of the caller; its answer is dropped."""
    body = rewrite.notification(method)
    await probe_app(
        request.app, probe_scope(request.scope, body), replay(body, request.receive), ResponseRecorder(NULL_ID)
    )


async def end_upstream(app: ASGIApp, scope: Scope, receive: Receive, server_id: str | None = None) -> None:
    """End the wrapped server's own session, of this id or of the scope's headers; the answer is dropped."""
    question = probe_scope(scope, b"")
    named = [] if server_id is None else [(SESSION_HEADER, server_id.encode("latin-1"))]
    question["headers"] = edit(question["headers"], drop=(b"content-type", b"content-length"), add=named)
    await probe_app(app, {**question, "method": "DELETE"}, replay(b"", receive), ResponseRecorder(NULL_ID))


async def probe_app(app: ASGIApp, question: Scope, receive: Receive, recorder: ResponseRecorder) -> None:
    """Ask the wrapped server outside of any trace, since its client does not ask."""
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


class ResponseRecorder(RedactedRepr, msgspec.Struct):
    """A `send` that keeps the server's answer, so that it can be read and passed on."""

    request_id: bytes  # that was asked with, as JSON
    messages: list[ASGIMessage] = []  # each struct has another list

    async def send(self, message: ASGIMessage) -> None:
        self.messages.append(message)

    @property
    def allowed(self) -> bool:
        """True if the server would serve this caller: it succeeded, or it only lacks the method."""
        return self.speaks and (self.succeeded or self.error_code == _METHOD_NOT_FOUND)

    @property
    def speaks(self) -> bool:
        """True if the server itself may have answered, and not a check in front of it."""
        return self.status in _SPEAKING

    @property
    def succeeded(self) -> bool:
        """True if the server has answered with a success."""
        return any(rewrite.is_answer(text, self.request_id) for text in self._texts())

    @property
    def answer(self) -> rewrite.Answer | None:
        """The success with which the server has answered, or None."""
        found = (rewrite.answer(text, self.request_id) for text in self._texts())
        return next(filter(None, found), None)

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
        """HTTP status; 500 if the server sent none."""
        return next((message["status"] for message in self.messages if "status" in message), 500)

    def _code(self, text: bytes) -> bytes | None:
        try:
            message = members(text)
            is_ours = rewrite.same_id(bytes(message["id"]), self.request_id)
            return bytes(members(bytes(message["error"]))["code"]) if is_ours else None
        except (Refusal, KeyError):
            return None

    async def relay(self, request: Request) -> None:
        """Send the caller the server's answer unchanged, except for event ids."""
        if request.watch is not UNWATCHED and self.messages:  # an application may return without an answer
            request.watch.begin_response(self.status, session_header_values(self.messages[0]))
            for text in self._texts():
                request.watch.read(text)
        send = signing_send(request)
        for message in self.messages:
            await send(message)
