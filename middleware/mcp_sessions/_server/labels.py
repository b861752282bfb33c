"""The options `correlate=` and `propagate=` at work on one request.

What a client calls its conversation is put where handlers and spans find it: on the session, or on the scope where
there is none. What the application calls in turn gets it by W3C baggage in the forwarded `_meta`.
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
from .._session.current import correlation_variable
from .._session.session import Session
from ..errors import Refusal
from ..telemetry.detect import attributes_of


class Conversation(msgspec.Struct, frozen=True):
    """What a deployment does with the names that clients give to conversations.

    Args:
        correlate: Finds the name, or None where nobody looks for it.
        member: The baggage member that is written for what the application calls, or None for none.
    """

    correlate: Correlate | None
    member: str | None

    @classmethod
    def of(cls, correlate: Any, propagate: Any) -> Conversation | None:
        """The checked form of the two options, or None where both are off.

        Raises:
            ConfigurationError: One is wrong; the message says what to write instead.
        """
        found, member = Correlate.of(correlate), baggage_member(propagate)
        return None if found is None and member is None else cls(found, member)

    def note(self, message: Message, head: RequestHeaders, session: Session | None, scope: Scope) -> Correlation | None:
        """Find the name and leave it where handlers look: on the session, or on the scope where there is none."""
        if self.correlate is None:
            return None
        found = self.correlate.find(message.meta, head.first)
        if message.method != INITIALIZE:  # servers start tasks there that outlive it
            correlation_variable.set(found)
        _tell(found)
        if session is None:
            scope["mcp_correlation"] = found
        else:
            session.correlation = found
        return found

    def carried(self, message: Message, body: bytes, session: Session | None, found: Correlation | None) -> bytes:
        """The body with our session's name in its baggage, or the client's own name where there is no session.

        Args:
            message: What came.
            body: What would be forwarded of it.
            session: The session that is attached, or None.
            found: What the client calls its conversation, or None.
        """
        named = None if found is None else found.id
        label = named if session is None else session.ref
        if self.member is None or label is None:
            return body
        baggage = None
        if message.meta is not None and "baggage" in message.meta:
            baggage = _baggage_text(message.meta["baggage"])
            if baggage is None:  # no baggage as anybody knows it, and not ours to mend
                return body
        return rewrite.with_meta(body, "baggage", propagated(baggage, label, member=self.member))


def _tell(found: Correlation | None) -> None:
    """Write it on the current span, the message's or the HTTP request's; those below are stamped at their start."""
    tracing = sys.modules.get("opentelemetry.trace")  # where nobody has imported it, nobody traces
    if found is not None and tracing is not None:
        tracing.get_current_span().set_attributes(attributes_of(found))


def _baggage_text(raw: Raw) -> str | None:
    try:
        return string(raw)
    except Refusal:
        return None
