"""How a message is handled and how it ends: its `RequestTelemetry`, which also reads its response.

An outcome is a success, a refusal, or a class of error. Error texts may quote a client, so none is used. Arguments and
results of tools are written only as the application's `redact=` returns them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Token
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Final, Protocol

import msgspec
from opentelemetry import context as contexts
from opentelemetry.context import Context
from opentelemetry.trace import Span, StatusCode

from .._errors import Refusal
from .._protocol.draft import INITIALIZE
from .._protocol.jsonrpc import Message
from .._session.claims import RedactedRepr
from . import Content, Redact
from . import _attributes as names
from ._attributes import CALL, KnownNames, attributes_on, server_ref, target_of
from ._context import RequestInfo, attached, request_info

CLIENT_MISTAKES: Final = frozenset({-32700, -32600, -32601, -32602, -32002})
"""The codes of a client's mistakes, which are not errors of the server (`CONVENTIONS`, `rpc.response.status_code`)."""

SUCCESS_WORD, REFUSED, FAILED = "success", "refused", "error"
OUTCOMES: Final = (SUCCESS_WORD, names.TOOL_ERROR, FAILED, REFUSED)
"""Of a tool call: its result, a result that says that the tool failed, no result, or the tool was not called."""

_OF_CALL: Final[dict[Content, str]] = {"arguments": "gen_ai.tool.call.arguments", "result": "gen_ai.tool.call.result"}
_OF_REQUEST: Final[dict[Content, str]] = {"arguments": names.INPUT, "result": names.OUTPUT}
_log: Final = logging.getLogger("mcp_sessions")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a request ended."""

    error: str | None = None  # the class of error (`error.type`), or None where the server did not fail
    code: str | None = None  # the JSON-RPC error code as text
    status: int | None = None  # the HTTP status, where that is all that there is
    reason: str | None = None  # why we refused it
    message: str | None = None  # our own fixed text of the refusal
    tools: tuple[str, ...] = ()  # the names of the tools that the answer lists
    is_unknown: bool = False  # whether the answer says that there is no such tool

    @classmethod
    def of_code(cls, code: int, reason: str | None = None, message: str | None = None) -> Outcome:
        """Return the outcome of a JSON-RPC error."""
        return cls(None if code in CLIENT_MISTAKES else str(code), str(code), reason=reason, message=message)

    @classmethod
    def of_status(cls, status: int) -> Outcome:
        """Return the outcome where there is no JSON-RPC answer: of a notification, and after a guard or a proxy."""
        if status < 400:
            return SUCCESS
        return cls(None if status < 500 else str(status), status=status)

    @property
    def word(self) -> str:
        """One of `OUTCOMES`."""
        if self.error is None and self.code is None and self.status is None:
            return SUCCESS_WORD
        if self.reason is not None or self.is_unknown or self.error is None:
            return REFUSED
        return names.TOOL_ERROR if self.error == names.TOOL_ERROR else FAILED

    @property
    def text(self) -> str:
        """The outcome for tools that show a request as a turn of a conversation."""
        detail = self.reason or self.code or (None if self.error == self.word else self.error) or self.status
        return self.word if detail is None else f"{self.word}: {detail}"

    @property
    def attributes(self) -> dict[str, str | int]:
        """The attributes of a span."""
        known = {names.ERROR_TYPE: self.error, names.STATUS_CODE: self.code, names.REASON: self.reason}
        attributes: dict[str, str | int] = {name: value for name, value in known.items() if value is not None}
        return attributes if self.status is None else {**attributes, names.HTTP_STATUS: self.status}


SUCCESS: Final = Outcome()


class OperationListener(Protocol):
    """Receives each message when it has been handled."""

    def operation(self, request: RequestTelemetry, outcome: Outcome, *, seconds: float) -> None:
        """Receive one message, with the seconds from when it was read to when its answer had left."""
        ...


def record(span: Span, outcome: Outcome) -> None:
    """Write on a span how its request ended."""
    if span.is_recording() and outcome is not SUCCESS:
        span.set_attributes(outcome.attributes)
        if outcome.error is not None:
            span.set_status(StatusCode.ERROR, outcome.message)


def content(kind: Content, text: str | None, *, is_ours: bool, is_outermost: bool) -> dict[str, str]:
    """Return the attributes of one side of a call: the conventions', and those that tools show of a whole request."""
    if text is None:
        return {}
    written = {_OF_CALL[kind]: text} if is_ours else {}
    return {**written, _OF_REQUEST[kind]: text} if is_outermost else written


def http_name(span: Span, name: str) -> str | None:
    """Return the name of an HTTP instrumentation's span for a request, or None for a span of anything else."""
    found = attributes_on(span)
    method = found.get("http.request.method") or found.get("http.method")  # the present name, and the one before
    return None if method is None else f"{method} {name}"


@dataclass(eq=False, repr=False)
class RequestTelemetry(RedactedRepr):
    """One message while it is handled."""

    message: Message
    target: str | None  # the tool or prompt that it names
    info: RequestInfo
    known: KnownNames
    listeners: Sequence[OperationListener] = ()  # what receives it when it has been handled
    unconfirmed_ref: str | None = None  # a session of the wrapped server that it names, if the server accepts it
    confirm: Callable[[RequestTelemetry, str], None] | None = None  # receives that session once it is accepted
    span: Span | None = None  # its own, where the wrapped server makes none
    context: Context | None = None  # in which a session that it creates is created
    traceparent: str | None = None  # which is forwarded in place of its client's
    contents: RedactedContents | None = None  # what writes its result on the span
    status: int = 200  # of its HTTP response, once that begins
    outcome: Outcome | None = None  # its answer's
    started_at: float = field(default_factory=perf_counter)
    token: Token[Context] | None = None  # restores the context before
    info_token: Token[RequestInfo | None] | None = None

    @property
    def observer(self) -> RequestTelemetry:
        """What observes the response."""
        return self

    @property
    def ref(self) -> str | None:
        """Its session."""
        return self.info.ref

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make its context the current one where it is not, for what we do ourselves in an `initialize`."""
        token = request_info.set(self.info)
        try:
            with attached(contexts.get_current() if self.context is None else self.context):
                yield
        finally:
            request_info.reset(token)

    def begin_response(self, status: int, session_ids: Sequence[str]) -> None:
        """Record the HTTP status; a transport session that an `initialize` names is taken for that of this message."""
        self.status = status
        if self.message.method == INITIALIZE:
            for server_id in session_ids:
                self.unconfirmed_ref = None if self.ref is not None else server_ref(server_id)

    def refuse(self, refusal: Refusal, code: int) -> None:
        """Record why we refuse it, and the JSON-RPC code that this deployment answers it with."""
        self._settle(Outcome.of_code(code, refusal.reason, refusal.message))

    def read(self, text: bytes) -> None:
        """Take the outcome from one message of the response: the HTTP span ends with the last byte of the answer."""
        outcome = outcome_in(text)
        if outcome is None or (self.outcome is not None and self.outcome.reason is not None):
            return
        if self.message.method == names.LIST and outcome is SUCCESS:
            outcome = Outcome(tools=listed_tools(text))
        self._settle(outcome)
        if self.contents is not None and outcome.code is None:
            self._write(self.contents.result(self.message, text))

    def _settle(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self._learn(outcome)
        name = self.known.span_name(self.message.method, self.target)
        http_span, span = self.info.http_span, self.span
        if span is not None and span.is_recording():
            span.update_name(name)
            record(span, outcome)
        if http_span is not None and http_span.is_recording():
            if (http := http_name(http_span, name)) is not None:
                http_span.update_name(http)
            record(http_span, outcome)
        outermost = http_span or span
        if outermost is not None and outermost.is_recording():
            outermost.set_attribute(names.OUTPUT, outcome.text)

    def _learn(self, outcome: Outcome) -> None:
        for tool in outcome.tools:
            self.known.learn(CALL, tool)
        target = self.target
        if target is None or outcome.is_unknown:
            return
        if outcome.word == SUCCESS_WORD:
            self.known.learn(self.message.method, target)
        elif outcome.error == names.TOOL_ERROR:
            self.known.learn(CALL, target, fails=True)

    def _write(self, result: str | None) -> None:
        http_span = self.info.http_span
        if self.span is not None:
            self.span.set_attributes(content("result", result, is_ours=True, is_outermost=http_span is None))
        if http_span is not None:
            http_span.set_attributes(content("result", result, is_ours=self.span is None, is_outermost=True))

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.end(error)

    def end(self, error: BaseException | None = None) -> None:
        """End it: the answer has left, or there is none. Of an application's exception the class is recorded."""
        if error is not None:
            self._settle(Outcome(type(error).__qualname__))
        elif self.outcome is None:
            self._settle(Outcome.of_status(self.status))
        assert self.outcome is not None
        is_served = self.outcome.word in {SUCCESS_WORD, names.TOOL_ERROR}
        if is_served and self.unconfirmed_ref is not None and self.confirm is not None:
            self.confirm(self, self.unconfirmed_ref)
        if self.span is not None:
            self.span.end()
        if self.token is not None:
            contexts.detach(self.token)
        if self.info_token is not None:
            request_info.reset(self.info_token)
        for listener in self.listeners:
            listener.operation(self, self.outcome, seconds=perf_counter() - self.started_at)


# --- reading a response ------------------------------------------------------------------------------


class _Error(msgspec.Struct, gc=False):
    code: int


class _Result(msgspec.Struct, gc=False):
    isError: bool = False  # noqa: N815  # the protocol's spelling


class _Answer(msgspec.Struct, gc=False):
    error: _Error | None = None
    result: _Result | None = None


class _Tool(msgspec.Struct, gc=False):
    name: str


class _Tools(msgspec.Struct, gc=False):
    tools: list[_Tool]


class _Listing(msgspec.Struct, gc=False):
    result: _Tools


_decode_listing: Final = msgspec.json.Decoder(_Listing).decode
_decode_answer: Final = msgspec.json.Decoder(_Answer).decode


def outcome_in(text: bytes) -> Outcome | None:
    """Return the outcome in one JSON-RPC message of a response; None where it is not an answer, or not readable."""
    try:
        answer = _decode_answer(text)
    except (ValueError, RecursionError):
        return None
    if answer.error is not None:
        return Outcome.of_code(answer.error.code)
    if answer.result is None:
        return None
    # As the SDK's and FastMCP's servers word it.
    return Outcome(names.TOOL_ERROR, is_unknown=b"Unknown tool" in text) if answer.result.isError else SUCCESS


def listed_tools(text: bytes) -> tuple[str, ...]:
    """Return the names of the tools in one JSON-RPC message of a response, as telemetry writes them."""
    try:
        answer = _decode_listing(text)
    except (ValueError, RecursionError):
        return ()
    return tuple(tool.name[: names.MAX_NAME] for tool in answer.result.tools if tool.name.isprintable())


class RedactedContents:
    """A call's arguments and result, as JSON texts and without `_meta`: our session is there."""

    def __init__(self, redact: Redact) -> None:
        self._redact: Final = redact

    def arguments(self, message: Message) -> str | None:
        """Return what may be written of a call's arguments, or None."""
        return self._text("arguments", message, message.body, "params", "arguments")

    def result(self, message: Message, answer: bytes) -> str | None:
        """Return what may be written of what a call returned, or None."""
        return self._text("result", message, answer, "result")

    def _text(self, kind: Content, message: Message, text: bytes, *path: str) -> str | None:
        value = _member(text, *path)
        if value is None:
            return None
        try:
            kept = self._redact(kind, target_of(message) or "", value)
            return kept if kept is None or isinstance(kept, str) else json.dumps(kept)
        except Exception as error:  # noqa: BLE001  # the call goes on, whatever the application's function does
            _log.warning("cannot record the %s of a call on its span: %s", kind, type(error).__name__)
            return None


def _member(text: bytes, *path: str) -> Any:
    try:
        value = json.loads(text)
        for name in path:
            value = value[name]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return {name: inner for name, inner in value.items() if name != "_meta"} if isinstance(value, dict) else value
