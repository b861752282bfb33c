"""`Handling`: one message while it is handled, from its begin to the moment at which its answer has left.

It holds the message's span, if there is one, and learns by and by how the message ended: from the HTTP
status, from what the answer says, or from us where we refuse it. Made by `RequestSpans.begin`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import Token
from time import perf_counter
from typing import Protocol

import msgspec
from opentelemetry import context as contexts
from opentelemetry.context import Context
from opentelemetry.trace import Span, StatusCode

from ..discreet import Discreet
from ..errors import Refusal
from ..jsonrpc import Message
from .attributes import ERROR_TYPE, REASON, STATUS_CODE
from .contents import Contents
from .outcome import Outcome, answered, may_have_failed, raised, refused, responded


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


class Handling(Discreet, msgspec.Struct, eq=False):
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
