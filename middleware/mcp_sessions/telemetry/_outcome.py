"""How a message is handled and how it ends: its `RequestTelemetry`, which also reads its response.

An outcome is a success or a class of error, by OpenTelemetry's conventions for MCP. Error texts may quote a client, so
none is used. Arguments and results of tools are written only as the application's `redact=` returns them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from contextvars import Token
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final, Protocol

import msgspec
from opentelemetry import context as contexts
from opentelemetry.context import Context
from opentelemetry.trace import Span, StatusCode

from .._errors import Refusal
from .._protocol.draft import INITIALIZE
from .._protocol.jsonrpc import Message
from .._session.claims import RedactedRepr, looks_like_session_id
from . import Content, Redact
from ._attributes import ERROR_TYPE, MAX_NAME, REASON, STATUS_CODE, TOOL_ERROR, server_ref, target_of
from ._context import ServerSpan, attached, below, request_context

_OF_CALL: Final[dict[Content, str]] = {"arguments": "gen_ai.tool.call.arguments", "result": "gen_ai.tool.call.result"}
# By OpenInference; Phoenix and MLflow show them of the outermost span of a trace.
_OF_REQUEST: Final[dict[Content, str]] = {"arguments": "input.value", "result": "output.value"}
_CAPITAL: Final = ord("E")  # of `isError`
_log: Final = logging.getLogger("mcp_sessions")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a request ended."""

    error: str | None = None  # the class of error (`error.type`), or None for a success
    code: str | None = None  # the JSON-RPC error code as text
    reason: str | None = None  # why we refused it
    message: str | None = None  # our own fixed text of the refusal
    tools: tuple[str, ...] = ()  # the names of the tools that the answer lists
    is_unknown: bool = False  # whether the answer says that there is no such tool


SUCCESS: Final = Outcome()
_TOOL_ERROR: Final = Outcome(TOOL_ERROR)
_UNKNOWN_TOOL: Final = Outcome(TOOL_ERROR, is_unknown=True)


class OperationListener(Protocol):
    """Receives each message when it has been handled."""

    def operation(
        self, message: Message, version: str | None, outcome: Outcome, *, seconds: float, ref: str | None
    ) -> None:
        """Receive one message, with the seconds from when it was read to when its answer had left."""
        ...


def fail(span: Span, outcome: Outcome) -> None:
    """Record on a span that a request failed."""
    if span.is_recording():
        known = {ERROR_TYPE: outcome.error, STATUS_CODE: outcome.code, REASON: outcome.reason}
        span.set_attributes({name: value for name, value in known.items() if value is not None})
        span.set_status(StatusCode.ERROR, outcome.message)


def content(kind: Content, text: str | None, is_ours: bool, is_outermost: bool) -> dict[str, str]:
    """Return the attributes of one side of a call: the conventions', and those that tools show of a whole request."""
    if text is None:
        return {}
    written = {_OF_CALL[kind]: text} if is_ours else {}
    return {**written, _OF_REQUEST[kind]: text} if is_outermost else written


class RequestTelemetry(RedactedRepr, msgspec.Struct, eq=False):
    """One message while it is handled. (A struct, since one is made per message, and a class takes longer to make.)"""

    message: Message
    ref: str | None = None  # its session
    around: Span | None = None  # the recorded span around its own
    is_recorded: bool = False  # whether a span of it is
    has_end: bool = True  # whether anything more happens when it ends without an exception
    version: str | None = None  # the `MCP-Protocol-Version` header
    listeners: Sequence[OperationListener] = ()  # what receives it when it has been handled
    unproven: str | None = None  # a session of the wrapped server that it names, one only if the server accepts it
    prove: Callable[[RequestTelemetry, str], None] | None = None  # receives that session once it is accepted
    started_at: float = 0.0  # as a performance counter counts
    span: Span | None = None
    server_span: ServerSpan | None = None  # what the wrapped server's own lacks, where that makes one
    context: Context | None = None  # in which it is handled, or None for the one before
    token: Token[Context] | None = None  # restores the context before; None where that is still current
    own_token: Token[Context | None] | None = None  # for the variable of those who start from an empty context
    contents: RedactedContents | None = None  # what writes its result on the span
    status: int = 200  # of its HTTP response, once that begins
    outcome: Outcome | None = None  # the error in its answer
    refusal: Outcome | None = None  # where we refused it

    @property
    def observer(self) -> RequestTelemetry | None:
        """What observes the response: this, where the outcome is of use."""
        is_named = (
            self.unproven is not None or self.message.method == INITIALIZE
        )  # by the wrapped server, if it answers
        return self if self.is_recorded or self.listeners or is_named else None

    def current(self) -> AbstractContextManager[None]:
        """Make its span the current one where it is not, for what we do ourselves in an `initialize`."""
        known, context = self.server_span, contexts.get_current() if self.context is None else self.context
        return attached(context if known is None or known.taken is None else below(known.taken, context))

    def begin_response(self, status: int, session_ids: Sequence[str]) -> None:
        """Record the HTTP status; a transport session that an `initialize` names is taken for that of this message."""
        self.status = status
        if self.message.method == INITIALIZE:
            for server_id in session_ids:
                if not looks_like_session_id(server_id):
                    self.unproven = None if self.ref is not None else server_ref(server_id)

    def refuse(self, refusal: Refusal, code: int) -> None:
        """Record why we refuse it, and the JSON-RPC code that this deployment answers it with."""
        self.refusal = Outcome(str(code), str(code), refusal.reason, refusal.message)
        self._fail_around(self.refusal)

    def read(self, text: bytes, succeeds: bool = False) -> None:
        """Take the outcome from one message of the response, which may be known to succeed; most are not decoded."""
        if self.listeners and self.message.method == "tools/list" and (tools := listed_tools(text)):
            self.outcome = Outcome(tools=tools)
            return
        # One byte is found many times as fast as a word, for which `in` would first ask whether it is a number.
        may_fail = _CAPITAL in text and text.find(b"true") >= 0 and text.find(b'"isError"') >= 0
        may_fail = may_fail or not (succeeds or text.find(b'"error"') < 0)
        if not may_fail and self.contents is None:
            return
        outcome = _read_outcome(text) if may_fail or b'"method"' in text else SUCCESS
        if outcome is None:
            return
        if self.contents is not None and outcome.code is None:
            self._write(self.contents.result(self.message, text))
        if outcome.error is not None:  # the page of a guard or a proxy has no more than its status
            self.outcome = outcome
            self._fail_around(outcome)

    def _fail_around(self, outcome: Outcome) -> None:
        if self.around is not None:  # at once, since it ends with the last byte of the answer
            fail(self.around, outcome)

    def _write(self, result: str | None) -> None:
        if self.span is not None:
            self.span.set_attributes(content("result", result, True, self.around is None))
        if self.around is not None:
            self.around.set_attributes(content("result", result, self.span is None, True))

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.end(error)

    def end(self, error: BaseException | None = None) -> None:
        """End it: the answer has left, or there is none. Of an application's exception the class is recorded."""
        if error is not None:
            outcome = Outcome(type(error).__qualname__)
            self._fail_around(outcome)
        else:  # the status decides where there is no JSON-RPC answer: for a notification, and after a guard or a proxy
            outcome = self.refusal or self.outcome or (SUCCESS if self.status < 400 else Outcome(str(self.status)))
        if self.unproven is not None and self.prove is not None and outcome.error is None:
            self.ref = self.unproven
            self.prove(self, self.unproven)
        if self.span is not None:
            if outcome.error is not None:
                fail(self.span, outcome)
            self.span.end()
        if self.token is not None:
            contexts.detach(self.token)
        if self.own_token is not None:
            request_context.reset(self.own_token)
        if self.listeners:
            seconds = perf_counter() - self.started_at
            for listener in self.listeners:
                listener.operation(self.message, self.version, outcome, seconds=seconds, ref=self.ref)


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


def _read_outcome(text: bytes) -> Outcome | None:
    """Return the outcome in one JSON-RPC message of a response; None where it is not an answer, or not readable."""
    try:
        answer = _decode_answer(text)
    except (ValueError, RecursionError):
        return None
    if answer.error is not None:
        return Outcome(str(answer.error.code), str(answer.error.code))
    if answer.result is None:
        return None
    if not answer.result.isError:
        return SUCCESS
    return _UNKNOWN_TOOL if b"Unknown tool" in text else _TOOL_ERROR  # as the SDK's and FastMCP's servers write it


def listed_tools(text: bytes) -> tuple[str, ...]:
    """Return the names of the tools in one JSON-RPC message of a response, as telemetry writes them."""
    try:
        answer = _decode_listing(text)
    except (ValueError, RecursionError):
        return ()
    return tuple(tool.name[:MAX_NAME] for tool in answer.result.tools if tool.name.isprintable())


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
