"""`SessionMetrics`: sessions created, refused and ended, and how long they and operations take.

Names and units are OpenTelemetry's where it has them. No metric carries a session or anything else without bound: an
unknown method is `_OTHER`, and a tool or a prompt is named once a call of it has succeeded.
"""

from __future__ import annotations

from typing import Final

from opentelemetry.metrics import MeterProvider, UpDownCounter, get_meter

from .._protocol.headers import HANDSHAKE_VERSIONS
from .._protocol.jsonrpc import Message
from .._session.events import Fact, RequestRefused, SessionCreated, SessionDeleted
from .attributes import (
    CALL,
    ERROR_TYPE,
    EXECUTE_TOOL,
    HTTP,
    METHOD,
    OPERATION,
    PROTOCOL_VERSION,
    REASON,
    SCOPE,
    STATUS_CODE,
    TARGET_ATTRIBUTES,
    target_of,
)
from .outcome import Outcome

CREATED: Final = "mcp_sessions.session.created"
ENDED: Final = "mcp_sessions.session.ended"
ACTIVE: Final = "mcp_sessions.session.active"
REFUSED: Final = "mcp_sessions.request.refused"
SESSION_DURATION: Final = "mcp.server.session.duration"
OPERATION_DURATION: Final = "mcp.server.operation.duration"

OPERATION_BUCKETS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Seconds, as the conventions advise."""
SESSION_BUCKETS: Final = (1.0, 10.0, 60.0, 300.0, 1800.0, 3600.0, 14_400.0, 43_200.0, 86_400.0, 259_200.0, 604_800.0)
"""Seconds, to seven days: logical sessions outlive the five minutes that the conventions advise for connections."""

OTHER: Final = "_OTHER"
VERSIONS: Final = HANDSHAKE_VERSIONS | {"2026-07-28"}
METHODS: Final = frozenset(
    "completion/complete initialize logging/setLevel notifications/cancelled notifications/initialized "
    "notifications/progress notifications/roots/list_changed ping prompts/get prompts/list resources/list "
    "resources/read resources/subscribe resources/templates/list resources/unsubscribe server/discover "
    "session/create session/delete sessions/create sessions/delete sessions/end_all sessions/fork sessions/list "
    "subscriptions/listen tasks/cancel tasks/get tasks/list tasks/result tasks/update terminate tools/call "
    "tools/list".split()
)
REASONS: Final = frozenset({"deleted", "ended", "ended_all", "expired", "idle", "not_begun", "root_ended"})
"""Why sessions end by themselves or by a client; an application's own words are `_OTHER`."""
_MAX_NAMES: Final = 1_000  # tools and prompts that are named; more than any server should have


class SessionMetrics:
    """Counts facts and times operations; handed to the middleware as `metrics=`.

    Args:
        meter_provider: Where metrics go; None is the process's own.
    """

    def __init__(self, meter_provider: MeterProvider | None = None) -> None:
        meter = get_meter(SCOPE, meter_provider=meter_provider)
        self._meter: Final = meter
        self._created: Final = meter.create_counter(CREATED, "{session}", "Sessions that were created")
        self._ended: Final = meter.create_counter(ENDED, "{session}", "Sessions that ended, by reason")
        self._refused: Final = meter.create_counter(REFUSED, "{request}", "Requests that were refused, by reason")
        self._active: UpDownCounter | None = None
        self._session_duration: Final = meter.create_histogram(
            SESSION_DURATION,
            "s",
            "The duration of the MCP session as observed on the MCP server.",
            explicit_bucket_boundaries_advisory=SESSION_BUCKETS,
        )
        self._operation_duration: Final = meter.create_histogram(
            OPERATION_DURATION,
            "s",
            "MCP request or notification duration as observed on the receiver.",
            explicit_bucket_boundaries_advisory=OPERATION_BUCKETS,
        )
        self._names: Final[set[tuple[str, str]]] = set()

    def follow(self) -> None:
        """Count how many sessions are alive, too: for a middleware that tracks them, and so sees every end."""
        self._active = self._meter.create_up_down_counter(ACTIVE, "{session}", "Sessions that are alive")

    def __call__(self, fact: Fact) -> None:
        if isinstance(fact, SessionCreated):
            self._created.add(1)
            self._add_active(1)
        elif isinstance(fact, SessionDeleted):
            self._add_active(-1)
            self._ended.add(1, {REASON: fact.reason if fact.reason in REASONS else OTHER})
            self._session_duration.record(fact.seconds, HTTP)
        elif isinstance(fact, RequestRefused):
            method = OTHER if fact.method not in METHODS else fact.method
            self._refused.add(1, {REASON: fact.reason, METHOD: method})

    def _add_active(self, number: int) -> None:
        if self._active is not None:
            self._active.add(number)

    def operation(
        self,
        message: Message,
        version: str | None,
        outcome: Outcome,
        *,
        seconds: float,
        ref: str | None = None,  # noqa: ARG002  # no metric names a session
    ) -> None:
        """Record how long one message took, in seconds."""
        attributes: dict[str, str] = {METHOD: message.method if message.method in METHODS else OTHER, **HTTP}
        if version is not None:
            attributes[PROTOCOL_VERSION] = version if version in VERSIONS else OTHER
        if message.method == CALL:
            attributes[OPERATION] = EXECUTE_TOOL
        if (target := target_of(message)) is not None:
            attributes[TARGET_ATTRIBUTES[message.method]] = self._bounded(message.method, target, outcome)
        if outcome.error is not None:
            attributes[ERROR_TYPE] = outcome.error
        if outcome.code is not None:
            attributes[STATUS_CODE] = outcome.code
        self._operation_duration.record(seconds, attributes)

    def _bounded(self, method: str, target: str, outcome: Outcome) -> str:
        """Return a target that exists, else `_OTHER`: any client can call tools that do not, each a new series."""
        name = (method, target)
        if name not in self._names:
            if outcome.error is not None or len(self._names) >= _MAX_NAMES:
                return OTHER
            self._names.add(name)
        return target
