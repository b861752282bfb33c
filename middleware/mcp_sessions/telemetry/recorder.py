"""`Telemetry`: what one middleware tells of its requests and its sessions, made once from its options.

It hands each thing to who tells it: a message to `request_spans`, a session's two ends to `session_spans`,
facts and durations to `metrics`. Where nobody listens it says so at once, and the request goes its way
untouched. Nothing here reads a message or judges a session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from starlette.types import Scope, Send

from .._protocol.draft import INITIALIZE
from .._protocol.jsonrpc import Message
from .._session.claims import Claims
from .._session.events import Fact, SessionDeleted
from .attributes import Stamps
from .detect import Redact, Spans, Trace, is_traced
from .frameworks import lead, makes_server_spans, place, servers
from .metrics import SessionMetrics
from .outcome import Contents, Hearing, RequestTelemetry
from .spans import RequestSpans, SessionSpans, Start
from .tail import Tail


class Telemetry:
    """The telemetry of one middleware.

    Args:
        parts: What a request to the endpoint may come to, whose own spans are looked for once it has started.
        spans: See `RequestSpans`.
        trace: See `RequestSpans`.
        metrics: Told of everything, or None.
        redact: Says what of a call's arguments and result is written on its span, or None for nothing.
        tail: The socket of who watches, or None.
        tracked: Whether every session's end is seen, so that those alive can be counted.
    """

    def __init__(
        self,
        parts: Callable[[], Iterable[object]],
        *,
        spans: Spans,
        trace: Trace,
        metrics: SessionMetrics | None,
        redact: Redact | None,
        tail: str | None,
        tracked: bool,
    ) -> None:
        if metrics is not None and tracked:
            metrics.follow()
        stamps = Stamps(Stamps.everywhere)
        self._is_tracing: Final = spans != "off"
        listeners = [listener for listener in (metrics, None if tail is None else Tail(tail)) if listener is not None]
        self._listeners: Final = listeners
        self._sessions: Final = SessionSpans(trace=trace, stamps=stamps)
        self._requests: Final = RequestSpans(
            spans,
            trace=trace,
            stamps=stamps,
            listeners=listeners,
            contents=None if redact is None else Contents(redact),
            looks_native=self._look,
        )
        self._parts: Final = parts
        self._leads = False
        self.begin: Final = self._requests.begin

    @property
    def _traces(self) -> bool:
        return self._is_tracing and is_traced()

    def _look(self) -> bool:
        """Look at the wrapped server, once it has started: whether it makes server spans of its own."""
        self._leads = lead(servers(self._parts()))
        return makes_server_spans(self._parts())

    def place(self, scope: Scope, message: Message) -> None:
        """Say on a message's scope what is current, where the server's handlers run elsewhere.

        Not in an `initialize`: what begins a transport session may be kept for as long as that lasts.
        """
        if self._leads and message.method != INITIALIZE:
            place(scope)

    def hearing(self, send: Send, handling: RequestTelemetry) -> Send:
        """A `send` by which a message's answer is heard, where anybody wants to know how it ended."""
        return Hearing(send, handling).__call__ if handling.listens else send

    def start(self, claims: Claims) -> Start | None:
        """Begin a session's creation, which `created` ends; None where nobody traces."""
        if not self._traces:
            return None
        return self._sessions.start(
            claims.ref, expires_at=claims.expires_at, client=claims.client, parent=claims.parent
        )

    def created(self, claims: Claims, start: Start) -> None:
        """A session is complete, and named by the request that creates it."""
        start.end()
        self._requests.name(claims)

    def hear(self, fact: Fact) -> None:
        """Tell a fact on."""
        for listener in self._listeners:
            listener(fact)
        if isinstance(fact, SessionDeleted) and self._traces:
            self._sessions.end(fact.ref, start=fact.trace, reason=fact.reason)
