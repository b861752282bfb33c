"""The answers that are ours: the results of methods about sessions, and every refusal.

Each goes out only after the wrapped server's own guards let the caller through (`admission`); where
they do not, the caller gets the server's answer instead. Some things are refused at once and put to
nobody: a body that is not one message which every parser reads alike, a session header that is given
twice, and a GET that names a session of ours, since the question would open a stream.

The answers of SEP-1364 that are ours: their field names the session, and refusals say which session was named.

Beside them stand those of the draft, which this room leaves as they are.

Asking the wrapped server whether it would serve this caller at all, before we answer ourselves.

What we answer never reaches the server's own guards: authentication, Origin and Host checks, era
and envelope rules. They must be neither skipped nor copied, so the caller's request is forwarded
once as `ping` (legacy era) or `server/discover` (modern era). A success, or "method not found" with
the caller's id, admits; any other answer goes to the caller as it came. An expired access token
must give 401 here, never "Session not found", or the client throws its session away.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Raw
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.types import Message as ASGIMessage

from .._protocol import decision, draft, headers, rewrite
from .._protocol.headers import SESSION_HEADER, RequestHeaders
from .._protocol.jsonrpc import SESSION_KEY, Message, MessageKind
from .._protocol.jsonrpc import Message as Request
from .._protocol.sep1364 import FIELD_NAME
from .._protocol.sse import EventStream
from .._protocol.strict_json import join, members
from .._session.events import RequestRefused
from ..errors import EraRefused, InvalidParams, Refusal, SessionEnded, SessionExpired, SessionNotFound, StoreUnavailable
from . import response
from .body import Replay
from .context import WAY
from .runtime import Runtime
from .sessions import ActiveSession

if TYPE_CHECKING:
    from ..telemetry.outcome import RequestTelemetry

_TOLD_TO_THE_OWNER: Final = (SessionExpired, SessionEnded)
_NONE: Final = frozenset[int]()
_FORGOTTEN: Final = frozenset({404})
_NAMELESS: Final = frozenset({400, 404})
"""What a server that keeps transport sessions says, past its guards, to who names none."""


class Answers(msgspec.Struct, frozen=True):
    """What one request may be answered with, without the application."""

    app: ASGIApp
    options: Runtime
    head: RequestHeaders
    scope: Scope
    receive: Receive
    send: Send
    handling: RequestTelemetry | None = None
    """What telemetry tells of the message."""

    async def answer(self, message: Message, ask: Callable[[], Awaitable[dict[str, Any]]]) -> None:
        """Answer a request of ours.

        Args:
            message: The request.
            ask: Does what it asks, and gives the result or raises a `Refusal`. Not called for who is not let in.
        """
        if await self._admitted(message):
            try:
                result = await ask()
            except Refusal as refusal:
                await self.refuse_at_once(message, refusal)
            else:
                await response.respond(self.send, 200, self._success(message, result))

    async def refuse(self, message: Message, refusal: Refusal) -> None:
        """Answer a message with the error that its session, or the lack of one, deserves."""
        if await self._admitted(message, self._also_admitted):
            await self.refuse_at_once(message, refusal)

    def ended(self, message: Message, ref: str) -> Callable[[], bytes]:
        """Gives the refusal of a request whose session ended while its answer was on the way, as JSON."""
        return lambda: self.told(message, SessionEnded(ref=ref))

    def told(self, message: Message, refusal: Refusal) -> bytes:
        """The refusal of a request whose answer had begun, as JSON."""
        code = self._note(message, refusal)
        return rewrite.error(message.id, code, refusal.client_message, _data(message, refusal, self.head.version))

    async def refuse_bodyless(self, refusal: Refusal) -> None:
        """Answer a request that is refused for its session header, whatever its body says."""
        if self.scope["method"] != "DELETE" or await self._may_delete(self._also_admitted):
            await self.refuse_unread(refusal)

    async def hang_up(self, live: ActiveSession) -> None:
        """End a transport session whose client says that it is done."""
        # Behind the bridge, a server that has forgotten its own has nothing left to end.
        if await self._may_delete(_NONE if self.scope.get(WAY) is None else _FORGOTTEN):
            try:
                await live.session.end("deleted")
            except StoreUnavailable as refusal:
                await self.refuse_unread(refusal)
            else:
                await self.tell(200)

    @property
    def _also_admitted(self) -> frozenset[int]:
        """Statuses that let a refusal out: behind the bridge, who came with an id that does not cross can name none."""
        is_stopped = self.options.bridges and self.head.session_ids and self.scope.get(WAY) is None
        return _NAMELESS if is_stopped else _NONE

    async def tell(self, status: int, *headers: tuple[bytes, bytes]) -> None:
        """Answer with a status and nothing else."""
        every = [(b"content-length", b"0"), *headers]
        await self.send({"type": "http.response.start", "status": status, "headers": every})
        await self.send({"type": "http.response.body", "body": b""})

    async def _may_delete(self, also: frozenset[int]) -> bool:
        """Whether the wrapped server would let this caller end something; where not, the caller has been answered."""
        if not self.options.asks and self.scope.get(WAY) is None:
            return True
        answer = await ask_to_delete(self.app, self.scope, self.receive)
        allowed = answer.allows_delete or answer.status in also
        if not allowed:
            await answer.relay(self.send)
        return allowed

    async def refuse_unread(self, refusal: Refusal) -> None:
        """Answer what has no id to answer to: a body that others might read otherwise, or no body at all."""
        code = self.options.code(refusal)
        self.options.emit(RequestRefused(refusal.reason, code, None, refusal.ref))
        await response.refuse(self.send, refusal, status=refusal.http_status, code=code)

    async def _admitted(self, message: Message, also: frozenset[int] = _NONE) -> bool:
        """Whether we may answer; where not, the caller has been answered."""
        try:
            if self.head.is_modern and message.kind is MessageKind.REQUEST:
                decision.check_envelope(message, version=self.head.version, methods=tuple(self.head.methods))
        except Refusal as refusal:
            await self.refuse_at_once(message, refusal)
            return False
        if not self.options.asks:
            return True
        answer = await ask(self.app, self.scope, self.receive, message, modern=self.head.is_modern)
        admitted = answer.admits or answer.status in also
        if not admitted:
            await answer.relay(self.send)
        return admitted

    def _success(self, message: Message, result: dict[str, Any]) -> bytes:
        """The answer that gives a result, as JSON."""
        assert message.id is not None
        complete = {"resultType": "complete"} if self.head.is_modern else {}
        return rewrite.result(message.id, {**complete, **result})

    async def refuse_at_once(self, message: Message, refusal: Refusal) -> None:
        """Answer a message whose sender the server has let in."""
        code = self._note(message, refusal)
        status, data = self._status(message, refusal), _data(message, refusal, self.head.version)
        await response.refuse(self.send, refusal, status=status, code=code, id=message.id, data=data)

    def _note(self, message: Message, refusal: Refusal) -> int:
        """Tell whoever listens that a message is refused; its code."""
        code = self.options.code(refusal)
        self.options.emit(RequestRefused(refusal.reason, code, message.label, refusal.ref))
        if self.handling is not None:
            self.handling.refuse(refusal, code)
        return code

    def _status(self, message: Message, refusal: Refusal) -> int:
        """HTTP status of a refusal: only a request has an answer that could carry a code, else the status must tell."""
        if message.kind is not MessageKind.REQUEST:
            return max(refusal.http_status, 400)
        # Handshake-era clients raise on a 4xx and lose the code that tells them what to mend.
        return 200 if isinstance(refusal, InvalidParams) and not self.head.is_modern else refusal.http_status


def _data(message: Message, refusal: Refusal, version: str | None) -> dict[str, Any] | None:
    """`error.data`: the id as its sender wrote it, and why it is refused where it is authentically the sender's."""
    if isinstance(refusal, EraRefused):
        return {"supported": sorted(headers.HANDSHAKE_VERSIONS), "requested": version}
    if not isinstance(refusal, SessionNotFound):
        return None
    named = draft.named(message)
    data = {"sessionId": named.session_id} if named is not None else {}
    return {**data, "reason": refusal.reason} if isinstance(refusal, _TOLD_TO_THE_OWNER) else data


class FieldAnswers(Answers, frozen=True):
    """What one request may be answered with where dialects of SEP-1364 are spoken, too."""

    async def refuse(self, message: Message, refusal: Refusal) -> None:
        """Answer a message with the error that its session, or the lack of one, deserves."""
        await super().refuse(self._as_draft(message), refusal)

    def ended(self, message: Message, ref: str) -> Callable[[], bytes]:
        """Gives the refusal of a request whose session ended while its answer was on the way, as JSON."""
        return super().ended(self._as_draft(message), ref)

    def _success(self, message: Message, result: dict[str, Any]) -> bytes:
        answer = super()._success(message, result)
        if message.id is None or FIELD_NAME not in result:
            return answer
        return rewrite.with_field(answer, message.id, result[FIELD_NAME]) or answer

    def _as_draft(self, message: Message) -> Message:
        """The message with its session where the draft names one, so that the error can say which it was."""
        opted = self.options.opted
        if opted is None or message.names_session:
            return message
        try:
            said = opted.said(message)
        except Refusal:
            return message
        if said is None:
            return message
        meta = {**(message.meta or {}), SESSION_KEY: Raw(join({"sessionId": said}))}
        params = msgspec.structs.replace(message.params, meta=meta)
        return msgspec.structs.replace(message, params=params)


_QUESTION: Final = {False: "ping", True: "server/discover"}
_DROPPED: Final = frozenset({b"content-length", b"transfer-encoding", b"accept-encoding", b"mcp-method", b"mcp-name"})
_CONTENT_TYPE: Final = b"content-type"
_METHOD_NOT_FOUND: Final = b"-32601"
_ID_FOR_NOTIFICATIONS: Final = b'"admission"'


async def ask(app: ASGIApp, scope: Scope, receive: Receive, request: Request, *, modern: bool) -> Answer:
    """Put the question to the wrapped server, on behalf of the caller.

    Args:
        app: The wrapped application.
        scope: The caller's scope; the question gets its own copy.
        receive: The server's `receive`, so that a caller who leaves ends the question too.
        request: What the caller sent.
        modern: Whether to ask in the modern era's way.

    Returns:
        The server's answer; `admits` judges it.
    """
    method = _QUESTION[modern]
    request_id = _ID_FOR_NOTIFICATIONS if request.id is None else request.id
    body = rewrite.ping(request, request_id, method)
    headers = _headers(scope, body)
    if modern:
        headers.append((b"mcp-method", method.encode()))
    answer = Answer(request_id)
    await app(_question(scope, headers), Replay(body, receive), answer)
    return answer


async def ask_to_delete(app: ASGIApp, scope: Scope, receive: Receive) -> Answer:
    """Put a caller's HTTP DELETE to the wrapped server, without the id that is ours.

    Args:
        app: The wrapped application.
        scope: The caller's scope; the question gets its own copy.
        receive: The server's `receive`.

    Returns:
        The server's answer; `allows_delete` judges it.
    """
    headers = [(name, value) for name, value in scope["headers"] if name != SESSION_HEADER]
    answer = Answer(_ID_FOR_NOTIFICATIONS)
    await app(_question(scope, headers), receive, answer)
    return answer


async def notify(app: ASGIApp, scope: Scope, receive: Receive, method: str) -> None:
    """Send the wrapped server a notification on behalf of a caller; what it says to that is nobody's.

    Args:
        app: The wrapped application.
        scope: The scope of another message of the caller; the notification gets its own copy.
        receive: The server's `receive`.
        method: The notification.
    """
    body = rewrite.notification(method)
    await app(_question(scope, _headers(scope, body)), Replay(body, receive), Answer(_ID_FOR_NOTIFICATIONS))


async def hang_up(app: ASGIApp, scope: Scope, receive: Receive) -> None:
    """End the wrapped server's own transport session, on behalf of a caller who is done; what it says is nobody's.

    Args:
        app: The wrapped application.
        scope: The scope of a message of that transport session; the DELETE gets its own copy.
        receive: The server's `receive`.
    """
    headers = [(name, value) for name, value in scope["headers"] if name not in _DROPPED and name != _CONTENT_TYPE]
    question = {**_question(scope, headers), "method": "DELETE"}
    await app(question, Replay(b"", receive), Answer(_ID_FOR_NOTIFICATIONS))


def _headers(scope: Scope, body: bytes) -> list[tuple[bytes, bytes]]:
    """A caller's headers, for another body and another method than the caller's."""
    kept = [(name, value) for name, value in scope["headers"] if name not in _DROPPED]
    return [*kept, (b"content-length", b"%d" % len(body))]


def _question(scope: Scope, headers: list[tuple[bytes, bytes]]) -> Scope:
    state = {**scope.get("state", {}), "mcp_session": None}
    return {**scope, "headers": headers, "state": state, "mcp_session": None}


class Answer:
    """What the server said, kept to be judged and, if need be, passed on as it came."""

    def __init__(self, request_id: bytes) -> None:
        self._request_id = request_id
        self._messages: list[ASGIMessage] = []

    async def __call__(self, message: ASGIMessage) -> None:
        self._messages.append(message)

    @property
    def admits(self) -> bool:
        """Whether the server would serve this caller: it succeeded, or it only lacks the method."""
        body = b"".join(message.get("body", b"") for message in self._messages)
        events = EventStream(max_event_bytes=len(body) + 1).feed(body)
        return any(map(self._is_admission, [body, *(event.data or b"" for event in events)]))

    @property
    def allows_delete(self) -> bool:
        """Whether the server would let this caller end something: it did, or it only lacks the method."""
        return self.status in range(200, 300) or self.status == HTTPStatus.METHOD_NOT_ALLOWED

    @property
    def status(self) -> int:
        """HTTP status; 500 where the server said nothing."""
        return next((message["status"] for message in self._messages if "status" in message), 500)

    def _is_admission(self, text: bytes) -> bool:
        request_id = self._request_id
        try:
            message = members(text)
            if rewrite.answers(message, request_id):
                return True
            error = members(bytes(message["error"]))
            return bytes(error["code"]) == _METHOD_NOT_FOUND and rewrite.same_id(bytes(message["id"]), request_id)
        except (Refusal, KeyError):
            return False

    async def relay(self, send: Send) -> None:
        """Give the caller what the server said, as it came."""
        for message in self._messages:
            await send(message)
