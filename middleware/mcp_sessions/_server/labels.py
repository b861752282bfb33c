"""The options `correlate=` and `propagate=` at work on one request.

The name that a client gives to its conversation is put where handlers and spans find it: on the session, or on the
scope where there is none. What the application calls in turn gets it by W3C baggage in the forwarded `_meta`.
"""

from __future__ import annotations

import sys
from typing import Any

import msgspec
from msgspec import Raw
from starlette.types import Scope

from .._protocol import rewrite
from .._protocol.draft import INITIALIZE
from .._protocol.headers import RequestHeaders
from .._protocol.jsonrpc import Message
from .._protocol.labels import Correlate, baggage_member, propagated
from .._protocol.strict_json import string
from .._session.claims import Correlation
from .._session.session import Session, correlation_variable
from ..errors import Refusal
from ..telemetry.detect import attributes_of


class Conversation(msgspec.Struct, frozen=True):
    """What a deployment does with the names that clients give to conversations.

    Args:
        correlate: Finds the name, or None where it is not looked for.
        member: The baggage member that is written for what the application calls, or None for none.
    """

    correlate: Correlate | None
    member: str | None

    @classmethod
    def of(cls, correlate: Any, propagate: Any) -> Conversation | None:
        """Return the checked form of the two options, or None where both are off.

        Raises:
            ConfigurationError: One is wrong; the message says what to write instead.
        """
        found, member = Correlate.of(correlate), baggage_member(propagate)
        return None if found is None and member is None else cls(found, member)

    def label(
        self, message: Message, body: bytes, *, headers: RequestHeaders, session: Session | None, scope: Scope
    ) -> bytes:
        """Leave the name where handlers look, and return the body with our session's name in its baggage, or that one.

        Args:
            message: The message.
            body: What would be forwarded of it.
            headers: The request's headers.
            session: The session that is attached, or None.
            scope: The ASGI scope.
        """
        found = None if self.correlate is None else self._found(self.correlate, message, headers, session, scope)
        name = None if found is None else found.id
        name = name if session is None else session.ref
        if self.member is None or name is None:
            return body
        baggage = None
        if message.meta is not None and "baggage" in message.meta:
            baggage = _text(message.meta["baggage"])
            if baggage is None:  # not baggage as W3C has it, and not ours to mend
                return body
        return rewrite.with_meta(body, "baggage", propagated(baggage, name, member=self.member))

    @staticmethod
    def _found(
        correlate: Correlate, message: Message, headers: RequestHeaders, session: Session | None, scope: Scope
    ) -> Correlation | None:
        found = correlate.find(message.meta, headers.first)
        if message.method != INITIALIZE:  # servers start tasks there that outlive it
            correlation_variable.set(found)
        tracing = sys.modules.get("opentelemetry.trace")  # nothing traces where it was never imported
        if found is not None and tracing is not None:  # spans below the current one are stamped at their start
            tracing.get_current_span().set_attributes(attributes_of(found))
        if session is None:
            scope["mcp_correlation"] = found
        else:
            session.correlation = found
        return found


def _text(raw: Raw) -> str | None:
    try:
        return string(raw)
    except Refusal:
        return None
