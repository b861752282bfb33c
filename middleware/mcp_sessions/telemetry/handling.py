"""`Handling`: one message while it is handled, from its begin to the moment at which its answer has left.

It holds the message's span, if there is one, and learns by and by how the message ended: from the HTTP
status, from what the answer says, or from us where we refuse it. Made by `RequestSpans.begin`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Protocol

from opentelemetry import context as contexts
from opentelemetry.context import Context
from opentelemetry.trace import Span, StatusCode

from ..dialects.transport import INITIALIZE
from ..errors import Refusal
from ..jsonrpc import Message
from .attributes import ERROR_TYPE, REASON, STATUS_CODE
from .contents import CALL, Contents
from .outcome import SUCCESS, Outcome, answered, raised, refused, responded


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


class Handling:
    """One message while it is handled."""

    __slots__ = (
        "_began",
        "_contents",
        "_listeners",
        "_message",
        "_outcome",
        "_ref",
        "_refused",
        "_span",
        "_token",
        "_version",
        "_within",
    )

    def __init__(
        self,
        message: Message,
        version: str | None,
        listeners: Sequence[Operations] = (),
        *,
        ref: str | None = None,
        span: Span | None = None,
        within: Context | None = None,
        contents: Contents | None = None,
    ) -> None:
        self._message = message
        self._version = version
        self._span = span
        self._within = within
        # Servers with transport sessions start a task in `initialize` that serves the whole connection, and that
        # would keep this context for every later request.
        self._token = None if within is None or message.method == INITIALIZE else contexts.attach(within)
        self._listeners = listeners
        self._ref = ref
        self._began = perf_counter() if listeners else 0.0
        self._outcome = SUCCESS
        self._refused: Outcome | None = None
        self._contents = contents if message.method == CALL and span is not None and span.is_recording() else None
        if span is not None and self._contents is not None:
            span.set_attributes(self._contents.arguments(message))

    @property
    def listens(self) -> bool:
        """Whether anybody is told of the outcome, so that the answer has to be heard."""
        return bool(self._listeners) or (self._span is not None and self._span.is_recording())

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make its span the current one where it is not: in what we do ourselves for an `initialize`."""
        token = contexts.attach(contexts.get_current() if self._within is None else self._within)
        try:
            yield
        finally:
            contexts.detach(token)

    def see(self, status: int) -> None:
        """The response begins: an HTTP status tells the outcome as long as no answer does."""
        self._outcome = responded(status)

    def hear(self, text: bytes) -> None:
        """One JSON-RPC message of the response, as it leaves."""
        heard = answered(text)
        if self._span is not None and self._contents is not None and heard is not None and heard.code is None:
            self._span.set_attributes(self._contents.result(self._message, text))
        if heard is not None and heard.error is not None:  # a page of a guard or a proxy says nothing but its status
            self._outcome = heard

    def refuse(self, refusal: Refusal, code: int) -> None:
        """We refuse it, and know more of the reason than the answer says.

        Args:
            refusal: Why.
            code: The JSON-RPC code that this deployment answers it with.
        """
        self._refused = refused(refusal, code)

    def end(self, error: BaseException | None = None) -> None:
        """The answer has left, or there will be none.

        Args:
            error: What the application raised, or None.
        """
        outcome = (self._refused or self._outcome) if error is None else raised(error)
        if self._span is not None:
            if outcome.error is not None and self._span.is_recording():
                self._span.set_attributes(errors(outcome))
                self._span.set_status(StatusCode.ERROR, outcome.message)
            self._span.end()
        if self._token is not None:
            contexts.detach(self._token)
        if self._listeners:
            seconds = perf_counter() - self._began
            for listener in self._listeners:
                listener.operation(self._message, self._version, outcome, seconds=seconds, ref=self._ref)


def errors(outcome: Outcome) -> dict[str, str]:
    """What a span says of an error."""
    said = {ERROR_TYPE: outcome.error, STATUS_CODE: outcome.code, REASON: outcome.reason}
    return {name: value for name, value in said.items() if value is not None}
