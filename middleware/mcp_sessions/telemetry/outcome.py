"""`RequestTelemetry`: one message while it is handled, from its begin to the moment at which its answer has left.

It holds the message's span, if there is one, and learns by and by how the message ended: from the HTTP
status, from what the answer says, or from us where we refuse it. Made by `RequestSpans.begin`.

A `send` that lets telemetry hear how a request ended, and passes everything on as it is.

A JSON answer is heard when it is complete, an event stream event by event; neither is held back. What is
too long to be an error goes by unheard. Nothing here reads an answer: the `RequestTelemetry` does.

How a request ended, as telemetry tells it: a success, a class of error, and never a text of the server's.

The answer is looked at, not kept. Error rules are those of OpenTelemetry's conventions for MCP: a
JSON-RPC error is its code, a tool's own failure `tool_error`; a refusal of ours is its code, and its
reason stands beside it. What an error says may quote what a client wrote, so it is left out.

What a tool was called with and what it returned, on its span: only where an application asks for it, and as it says.

Each passes through the application's own function first, and is left out where that gives None or raises.
`_meta` is never among it, since our session is in there. Attributes are those of OpenTelemetry's GenAI
conventions, as JSON texts.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Token
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final, Protocol

import msgspec
from opentelemetry import context as contexts
from opentelemetry.context import Context
from opentelemetry.trace import Span, StatusCode
from starlette.types import Message as ASGIMessage
from starlette.types import Send

from .._protocol.jsonrpc import Message
from .._protocol.sse import EventStream
from .._session.claims import RedactedRepr
from ..errors import Refusal
from .attributes import ERROR_TYPE, REASON, STATUS_CODE, TOOL_ERROR, target_of
from .detect import Content, Redact


class Operations(Protocol):
    """Who is told of each message when it has been handled."""

    def operation(
        self, message: Message, version: str | None, outcome: Outcome, *, seconds: float, ref: str | None
    ) -> None:
        """Take one message.

        Args:
            message: The request or notification.
            version: The `MCP-Protocol-Version` header, or None.
            outcome: How it ended.
            seconds: From when it was read to when its answer had left.
            ref: Its session, or None.
        """
        ...


class RequestTelemetry(RedactedRepr, msgspec.Struct, eq=False):
    """One message while it is handled. (A struct, since one is made per message, and a class takes longer to make.)

    Args:
        message: The request or notification.
        version: The `MCP-Protocol-Version` header, or None.
        listeners: Who is told of it when it has been handled.
        ref: Its session, or None.
        span: Its span, or None.
        within: What is current meanwhile, or None for what was before.
        token: What gives back what was current, or None where it still is.
        contents: What is written of its result, or None for nothing.
        listens: Whether anybody is told of the outcome, so that the answer has to be heard.
        began: When it began, as a performance counter says.
        status: The HTTP status of its response, once that begins.
        heard: The error that its answer told, or None.
        refused: How we refused it, or None.
    """

    message: Message
    version: str | None
    listeners: Sequence[Operations] = ()
    ref: str | None = None
    span: Span | None = None
    within: Context | None = None
    token: Token[Context] | None = None
    contents: Contents | None = None
    listens: bool = False
    began: float = 0.0
    status: int = 200
    heard: Outcome | None = None
    refused: Outcome | None = None

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make its span the current one where it is not: in what we do ourselves for an `initialize`."""
        token = contexts.attach(contexts.get_current() if self.within is None else self.within)
        try:
            yield
        finally:
            contexts.detach(token)

    def minds(self, text: bytes) -> bool:
        """Whether a message of the response is worth hearing; by far the most are not."""
        return self.contents is not None or may_have_failed(text)

    def hear(self, text: bytes) -> None:
        """One JSON-RPC message of the response, as it leaves."""
        heard = answered(text)
        if heard is None:
            return
        if self.span is not None and self.contents is not None and heard.code is None:
            self.span.set_attributes(self.contents.result(self.message, text))
        if heard.error is not None:  # a page of a guard or a proxy says nothing but its status
            self.heard = heard

    def refuse(self, refusal: Refusal, code: int) -> None:
        """We refuse it, and know more of the reason than the answer says.

        Args:
            refusal: Why.
            code: The JSON-RPC code that this deployment answers it with.
        """
        self.refused = refused(refusal, code)

    def end(self, error: BaseException | None = None) -> None:
        """The answer has left, or there will be none.

        Args:
            error: What the application raised, or None.
        """
        outcome = (self.refused or self.heard or responded(self.status)) if error is None else raised(error)
        span = self.span
        if span is not None:
            if outcome.error is not None and span.is_recording():
                span.set_attributes(errors(outcome))
                span.set_status(StatusCode.ERROR, outcome.message)
            span.end()
        if self.token is not None:
            contexts.detach(self.token)
        if self.listeners:
            seconds = perf_counter() - self.began
            for listener in self.listeners:
                listener.operation(self.message, self.version, outcome, seconds=seconds, ref=self.ref)


def errors(outcome: Outcome) -> dict[str, str]:
    """What a span says of an error."""
    said = {ERROR_TYPE: outcome.error, STATUS_CODE: outcome.code, REASON: outcome.reason}
    return {name: value for name, value in said.items() if value is not None}


MAX_BYTES: Final = 1 << 20  # of an answer, or of one event, that are kept to be heard


class Hearing(RedactedRepr, msgspec.Struct, eq=False):
    """One response, as it leaves. (A struct, since one is made per message, and a class takes longer to make.)

    Args:
        send: Where it goes.
        handling: What hears it.
        start: How it began, until the first of its body comes.
        events: What splits an event stream.
        kept: What there is of a JSON answer that comes in several pieces, or None where it is not heard.
        size: How many bytes these are.
    """

    send: Send
    handling: RequestTelemetry
    start: ASGIMessage | None = None
    events: EventStream | None = None
    kept: list[bytes] | None = None
    size: int = 0

    def __call__(self, message: ASGIMessage) -> Awaitable[None]:
        # No coroutine of its own: there would be one more for each part of each response.
        if message["type"] == "http.response.start":
            self.start = message
            self.handling.status = message["status"]
        elif self.start is not None:
            # What comes whole and tells of no error is not looked at any further, whatever it is.
            if message.get("more_body", False) or self.handling.minds(message.get("body", b"")):
                self._begin(self.start)
                self._hear(message)
            self.start = None
        elif self.events is not None or self.kept is not None:
            self._hear(message)
        return self.send(message)

    def _begin(self, start: ASGIMessage) -> None:
        media_type = media_type_of(start.get("headers", ()))
        if media_type == b"application/json":
            self.kept = []
        elif media_type == b"text/event-stream":
            self.events = EventStream(max_event_bytes=MAX_BYTES)

    def _hear(self, message: ASGIMessage) -> None:
        if self.events is not None:
            for event in self.events.feed(message.get("body", b"")):
                if event.data is not None:
                    self.handling.hear(event.data)
        elif self.kept is not None:
            self._collect(self.kept, message)

    def _collect(self, kept: list[bytes], message: ASGIMessage) -> None:
        body = message.get("body", b"")
        self.size += len(body)
        if self.size > MAX_BYTES:
            self.kept = None
            return
        kept.append(body)
        if not message.get("more_body", False):
            self.handling.hear(b"".join(kept))


def media_type_of(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """What a response says that it is, without parameters; empty where it says nothing."""
    for name, value in headers:
        if name.lower() == b"content-type":
            return value.partition(b";")[0].strip().lower()
    return b""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a request ended.

    Args:
        error: The class of error (`error.type`), or None for a success.
        code: The JSON-RPC error code as text, or None.
        reason: Why we refused it, or None where it was not us.
        message: Our own fixed text of the refusal, or None.
    """

    error: str | None = None
    code: str | None = None
    reason: str | None = None
    message: str | None = None


SUCCESS: Final = Outcome()
_TOOL_ERROR: Final = Outcome(TOOL_ERROR)


class _Error(msgspec.Struct, gc=False):
    code: int


class _Result(msgspec.Struct, gc=False):
    isError: bool = False  # noqa: N815  # the protocol's spelling


class _Answer(msgspec.Struct, gc=False):
    """What an answer's outcome hangs on; everything else is skipped."""

    method: str | None = None
    error: _Error | None = None
    result: _Result | None = None


_answer: Final = msgspec.json.Decoder(_Answer).decode


def may_have_failed(text: bytes) -> bool:
    """Whether it is worth while to read a message of a response, to find whether it tells of an error."""
    # `in` would take twice as long: it first asks whether it is given a number.
    return text.find(b'"error"') >= 0 or (text.find(b"true") >= 0 and text.find(b'"isError"') >= 0)


def answered(text: bytes) -> Outcome | None:
    """The outcome that one JSON-RPC message of a response tells.

    Args:
        text: The message, as the server wrote it.

    Returns:
        The outcome, or None for a message that is no answer: a notification, or a request of the server.
    """
    if b'"method"' not in text and not may_have_failed(text):
        return SUCCESS  # by far the most, and not read at all
    try:
        answer = _answer(text)
    except (ValueError, RecursionError):  # somebody else's JSON
        return None
    if answer.error is not None:
        return Outcome(str(answer.error.code), str(answer.error.code))
    if answer.result is None:
        return None
    return _TOOL_ERROR if answer.result.isError else SUCCESS


def responded(status: int) -> Outcome:
    """The outcome that an HTTP status tells, where no answer was seen: 202 for a notification, 401 from a guard."""
    return SUCCESS if status < 400 else Outcome(str(status))


def refused(refusal: Refusal, code: int) -> Outcome:
    """The outcome of a request that we refused.

    Args:
        refusal: Why.
        code: The JSON-RPC code that this deployment answers it with.
    """
    return Outcome(str(code), str(code), refusal.reason, refusal.message)


def raised(error: BaseException) -> Outcome:
    """The outcome of a request whose application raised: the name of the class, not its text."""
    return Outcome(type(error).__qualname__)


CALL: Final = "tools/call"
_NAMES: Final[dict[Content, str]] = {
    "arguments": "gen_ai.tool.call.arguments",
    "result": "gen_ai.tool.call.result",
}
_log: Final = logging.getLogger("mcp_sessions")


class Contents:
    """What is written of calls.

    Args:
        redact: The application's function.
    """

    def __init__(self, redact: Redact) -> None:
        self._redact: Final = redact

    def arguments(self, message: Message) -> dict[str, str]:
        """The attribute that says what a call's arguments are, if it may be known."""
        return self._said("arguments", message, message.body, "params", "arguments")

    def result(self, message: Message, answer: bytes) -> dict[str, str]:
        """The attribute that says what a call returned, if it may be known."""
        return self._said("result", message, answer, "result")

    def _said(self, what: Content, message: Message, text: bytes, *path: str) -> dict[str, str]:
        value = _found(text, *path)
        if value is None:
            return {}
        try:
            kept = self._redact(what, target_of(message) or "", value)
            return {} if kept is None else {_NAMES[what]: _text(kept)}
        except Exception as error:  # noqa: BLE001  # the call goes on, whatever the application's function makes of it
            _log.warning("the %s of a call are left out of its span: %s", what, type(error).__name__)
            return {}


def _found(text: bytes, *path: str) -> Any:
    """What is there, without `_meta`; None where nothing is, or nothing that could be read."""
    try:
        value = json.loads(text)
        for name in path:
            value = value[name]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return {name: inner for name, inner in value.items() if name != "_meta"} if isinstance(value, dict) else value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
