"""How a message is handled and how it ends: its `RequestTelemetry`, which also reads its response.

An outcome is a success, a refusal, or a class of error. Error texts may quote a client, so none is used. Arguments and
results of tools are written only as the application's `redact=` returns them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import Token
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, ClassVar, Final

import msgspec
from opentelemetry.context import Context, detach, get_current
from opentelemetry.trace import Link, Span, StatusCode, get_current_span

from .._errors import Refusal, SessionRequired
from .._protocol.jsonrpc import Message
from .._protocol.methods import INITIALIZE
from .._session.functions import described, is_unfinished
from . import _attributes as names
from ._attributes import CALL, KnownNames
from ._context import RequestInfo, attached, attributes_on, name_session, request_info, within
from ._core import MAX_NAME, Content, Redact, call_observer

CLIENT_MISTAKES: Final = frozenset({-32700, -32600, -32601, -32602, -32002})
"""The codes of a client's mistakes, which are not errors of the server (`CONVENTIONS`, `rpc.response.status_code`)."""

SUCCESS_WORD, REFUSED, FAILED = "success", "refused", "error"
OUTCOMES: Final = (SUCCESS_WORD, names.TOOL_ERROR, FAILED, REFUSED)
"""Of a tool call: its result, a result that says that the tool failed, no result, or the tool was not called."""

_CONTENT: Final[dict[Content, tuple[str, str]]] = {
    "arguments": (names.INPUT, "gen_ai.tool.call.arguments"),
    "result": (names.OUTPUT, "gen_ai.tool.call.result"),
    "error": (names.OUTPUT, names.ERROR_MESSAGE),
}
_log: Final = logging.getLogger("mcp_sessions")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a request ended."""

    error: str | None = None  # the class of error (`error.type`), or None if the server did not fail
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


SUCCESS: Final = Outcome()


def record(span: Span, outcome: Outcome) -> None:
    """Write on a span how its request ended; what the wrapped server wrote on a span stays."""
    if outcome is SUCCESS:
        return
    found = attributes_on(span)
    if outcome.error is not None and names.ERROR_TYPE not in found:
        span.set_status(StatusCode.ERROR, outcome.message)
    known: dict[str, Any] = {
        names.ERROR_TYPE: outcome.error,
        names.STATUS_CODE: outcome.code,
        names.REASON: outcome.reason,
        names.HTTP_STATUS: outcome.status,
    }
    span.set_attributes({name: value for name, value in known.items() if value is not None and name not in found})


def http_method_of(span: Span) -> str | None:
    """Return the HTTP method on the span of an HTTP instrumentation; None for a span of anything else."""
    found = attributes_on(span)
    return found.get("http.request.method") or found.get("http.method")  # the present name, and the one before


@dataclass(eq=False, repr=False, kw_only=True)
class RequestTelemetry(RequestInfo):
    """One message while it is handled."""

    message: Message
    target: str | None  # the tool or prompt that it names
    known: KnownNames
    listeners: Sequence[Callable[[RequestTelemetry], None]] = ()  # receive it when it has been handled
    redact: Redact | None = None  # where it is a call whose arguments and result may be written
    store_fault: Callable[[float], str | None] = lambda since: None  # why the store has not answered since then
    attributes: Mapping[str, Any] = field(default_factory=dict)  # of its server span
    links: list[Link] = field(default_factory=list)  # what that may link, its parent among it
    is_native: bool = False  # whether the wrapped server makes a server span
    openinference: bool = False  # whether spans have what Phoenix and MLflow show
    name: str = ""  # of its spans
    http_method: str | None = None  # which the name of the HTTP instrumentation's span begins with
    context: Context | None = None  # for its handler, and for a session that it creates
    traceparent: str | None = None  # which is forwarded in place of its client's
    status: int = 200  # of its HTTP response, once that begins
    outcome: Outcome = SUCCESS
    is_settled: bool = False  # whether its outcome is known
    is_refused: bool = False  # whether the middleware refuses it
    started_at: float = field(default_factory=perf_counter)
    seconds: float = 0  # from when it arrived to when its answer had left
    token: Token[Context] | None = None  # restores the context before
    info_token: Token[RequestInfo | None] | None = None

    @property
    def reads_content(self) -> bool:
        """Whether its spans may have arguments and results."""
        return self.redact is not None or self.openinference

    def arguments(self, span: Span) -> dict[str, str]:
        """Return what it calls, and with what, as attributes of one of its spans."""
        if not self.reads_content:
            return {}
        default = self.message.label if self.target is None else f"{self.message.label} {self.target}"
        text = self._redacted("arguments", self.message.body, "params", "arguments")
        return self._content("arguments", span, default, text)

    def _content(self, kind: Content, span: Span, default: str, text: str | None) -> dict[str, str]:
        """Return a text by OpenTelemetry's conventions, and the text or a default by OpenInference's."""
        openinference, opentelemetry = _CONTENT[kind]
        attributes = {}
        if self.openinference and span is (self.http_span or self.span):
            attributes[openinference] = text or default
        if text is not None and span is (self.span or self.http_span):
            attributes[opentelemetry] = text
        return attributes

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make it the current one: for handlers that run elsewhere, and for what we do ourselves in `initialize`."""
        with within(self), attached(get_current() if self.context is None else self.context):
            yield

    def begin_response(self, status: int, session_ids: Sequence[str]) -> None:
        """Record the HTTP status, and as the session of an `initialize` the transport session that it names."""
        self.status = status
        if self.message.method == INITIALIZE and self.ref is None and session_ids:
            self.name_session(self.known.learn_session(session_ids[-1]))

    def name_session(self, ref: str) -> None:
        """Name the session that it creates on its spans; a request without a session then belongs to it."""
        self.ref: str | None = self.ref or ref
        for span in self.spans:
            name_session(span, ref)

    def refuse(self, refusal: Refusal) -> None:
        """Record why the middleware refuses it."""
        self.is_refused = True
        self._settle(Outcome.of_code(refusal.code, refusal.reason, refusal.message))

    def read(self, text: bytes) -> None:
        """Take the outcome from one message of the response: the HTTP span ends with the last byte of the answer."""
        outcome = outcome_in(text)
        if outcome is None or self.outcome.reason is not None:
            return
        if outcome.error is not None:  # it need not be the tool's
            outcome = replace(outcome, reason=outcome.reason or self.store_fault(self.started_at))
        kind: Content = "result" if outcome.code is None else "error"
        self._settle(outcome, kind, self._redacted(kind, text, kind))

    def _settle(self, outcome: Outcome, kind: Content = "result", text: str | None = None) -> None:
        self.outcome, self.is_settled = outcome, True
        self._learn(outcome)
        name = self.known.span_name(self.message.method, self.target)
        for span in self.spans:
            if name != self.name and span is self.span:
                span.update_name(name)
            elif name != self.name and span is self.http_span and self.http_method is not None:
                span.update_name(f"{self.http_method} {name}")
            record(span, outcome)
            if self.reads_content:
                span.set_attributes(self._content(kind, span, outcome.text, text))
        self.name = name

    def _learn(self, outcome: Outcome) -> None:
        for tool in outcome.tools:
            self.known.learn(CALL, tool)
        if self.target is not None and not outcome.is_unknown:
            if outcome.word == SUCCESS_WORD:
                self.known.learn(self.message.method, self.target)
            elif outcome.error == names.TOOL_ERROR:
                self.known.learn(CALL, self.target, fails=True)

    def _redacted(self, kind: Content, text: bytes, *path: str) -> str | None:
        """Return what may be written of a JSON text's member, without `_meta`: our session is there."""
        if self.redact is None:
            return None
        try:
            value = json.loads(text)
            for name in path:
                value = value[name]
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        if isinstance(value, dict):
            value.pop("_meta", None)
        try:
            kept = self.redact(kind, self.target or "", value)
            if not is_unfinished(kept):
                return kept if kept is None or isinstance(kept, str) else json.dumps(kept)
            _log.warning("cannot record the %s of a call on its span: redact= returned %s", kind, described(kept))
        except Exception as error:  # noqa: BLE001  # the call goes on, whatever the application's function does
            _log.warning("cannot record the %s of a call on its span: %s", kind, type(error).__name__)
        return None

    def end(self, error: BaseException | None = None) -> None:
        """End it: the answer has left, or the application raised; then the class of the exception is recorded."""
        if error is not None:
            call_observer("telemetry", self._settle, Outcome(type(error).__qualname__))
        elif not self.is_settled:
            call_observer("telemetry", self._settle, Outcome.of_status(self.status))
        if self.span is not None:
            call_observer("telemetry", self.span.end)
        if self.token is not None:
            detach(self.token)
        assert self.info_token is not None  # since it was begun
        request_info.reset(self.info_token)
        self.serves_connection: bool = self.message.method == INITIALIZE
        self.seconds = perf_counter() - self.started_at
        for listener in self.listeners:
            call_observer("telemetry", listener, self)


@dataclass(eq=False, repr=False, kw_only=True)
class UnreadTelemetry(RequestInfo):
    """A request without a message while it is handled; it has no span but the one around."""

    current: ClassVar[Callable[[], AbstractContextManager[None]]] = nullcontext  # it creates no session
    traceparent: str | None = None
    info_token: Token[RequestInfo | None] | None = None

    def annotate(self) -> None:
        """Name the session on the span around, and who sends the request."""
        span = get_current_span()
        name_session(span, self.ref)
        span.set_attributes(self.caller)

    def begin_response(self, status: int, session_ids: Sequence[str]) -> None:
        """Record nothing: the span around has the status."""

    def read(self, text: bytes) -> None:
        """Record nothing: no message of the response answers it."""

    def name_session(self, ref: str) -> None:
        """Record nothing: it creates none."""

    def refuse(self, refusal: Refusal) -> None:
        """Record why it is refused, and who sent it."""
        self.annotate()
        record(get_current_span(), Outcome.of_code(refusal.code, refusal.reason))

    def end(self, _error: BaseException | None) -> None:
        """End it."""
        assert self.info_token is not None  # since it was begun
        request_info.reset(self.info_token)


# --- reading a response ------------------------------------------------------------------------------


class _Error(msgspec.Struct, gc=False):
    code: int


class _Tool(msgspec.Struct, gc=False):
    name: str


class _Result(msgspec.Struct, gc=False):
    isError: bool = False  # noqa: N815  # the protocol's spelling
    tools: list[_Tool] = []  # of `tools/list`


class _Answer(msgspec.Struct, gc=False):
    error: _Error | None = None
    result: _Result | None = None


_decode: Final = msgspec.json.Decoder(_Answer).decode


def outcome_in(text: bytes) -> Outcome | None:
    """Return the outcome in one JSON-RPC message of a response; None where it is not an answer, or not readable."""
    try:
        answer = _decode(text)
    except (ValueError, RecursionError):
        return None
    if answer.error is not None:
        return Outcome.of_code(answer.error.code)
    if answer.result is None:
        return None
    if answer.result.isError:  # as the SDK's and FastMCP's servers word it, and as we do
        reason = SessionRequired.reason if SessionRequired.message.encode() in text else None
        return Outcome(names.TOOL_ERROR, reason=reason, is_unknown=b"Unknown tool" in text)
    tools = tuple(tool.name[:MAX_NAME] for tool in answer.result.tools if tool.name.isprintable())
    return Outcome(tools=tools) if tools else SUCCESS
