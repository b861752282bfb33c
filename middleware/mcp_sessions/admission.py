"""Asking the wrapped server whether it would serve this caller at all, before we answer ourselves.

What we answer never reaches the server's own guards: authentication, Origin and Host checks, era
and envelope rules. They must be neither skipped nor copied, so the caller's request is forwarded
once as `ping` (legacy era) or `server/discover` (modern era). A success, or "method not found" with
the caller's id, admits; any other answer goes to the caller as it came. An expired access token
must give 401 here, never "Session not found", or the client throws its session away.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from . import splice
from .errors import Refusal
from .head import SESSION_HEADER
from .intake import Replay
from .jsonrpc import Message as Request
from .members import members
from .sse import EventStream

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
    body = splice.ping(request, request_id, method)
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
    body = splice.notification(method)
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
        self._messages: list[Message] = []

    async def __call__(self, message: Message) -> None:
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
            if splice.answers(message, request_id):
                return True
            error = members(bytes(message["error"]))
            return bytes(error["code"]) == _METHOD_NOT_FOUND and splice.same_id(bytes(message["id"]), request_id)
        except (Refusal, KeyError):
            return False

    async def relay(self, send: Send) -> None:
        """Give the caller what the server said, as it came."""
        for message in self._messages:
            await send(message)
