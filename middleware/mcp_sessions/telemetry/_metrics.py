"""`SessionMetrics`: sessions created, alive, refused and ended, and how long they and operations take.

Names and units are OpenTelemetry's where it has them. Every counter begins at 0, so that a rate sees the first burst.
No metric carries a session or anything else without bound: what the protocol, or the server's own lists, do not know
is `_OTHER`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation, get_meter

from .._protocol.headers import HANDSHAKE_VERSIONS
from .._protocol.jsonrpc import Message
from .._refusals import ENDS, REFUSALS
from .._session.events import Fact, RequestRefused, SessionCreated, SessionDeleted
from . import _attributes as names
from ._attributes import CALL, METHOD, REASON, SCOPE, TARGET_ATTRIBUTES, TOOL, TOOL_ERROR, target_of
from ._outcome import Outcome

CREATED: Final = "mcp_sessions.session.created"
ENDED: Final = "mcp_sessions.session.ended"
ACTIVE: Final = "mcp_sessions.session.active"
REFUSED: Final = "mcp_sessions.request.refused"
CALLS: Final = "mcp_sessions.tool.calls"
SESSION_DURATION: Final = "mcp.server.session.duration"
OPERATION_DURATION: Final = "mcp.server.operation.duration"

OPERATION_BUCKETS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Seconds, as the conventions advise."""
SESSION_BUCKETS: Final = (1.0, 10.0, 60.0, 300.0, 1800.0, 3600.0, 14_400.0, 43_200.0, 86_400.0, 259_200.0, 604_800.0)
"""Seconds, to seven days: logical sessions outlive the five minutes that the conventions advise for connections."""

OUTCOME: Final = "mcp_sessions.outcome"
SUCCEEDED, FAILED = "success", "error"
OUTCOMES: Final = (SUCCEEDED, TOOL_ERROR, FAILED)
"""Of a tool call: its result, a result that says that the tool failed, or no result."""
OTHER: Final = "_OTHER"
VERSIONS: Final = HANDSHAKE_VERSIONS | {"2026-07-28"}
METHODS: Final = frozenset(
    "completion/complete initialize logging/setLevel notifications/cancelled notifications/initialized "
    "notifications/progress notifications/roots/list_changed ping prompts/get prompts/list resources/list "
    "resources/read resources/subscribe resources/templates/list resources/unsubscribe server/discover "
    "session/create session/delete sessions/create sessions/delete sessions/fork sessions/list "
    "subscriptions/listen tasks/cancel tasks/get tasks/list tasks/result tasks/update terminate tools/call "
    "tools/list".split()
)
_MAX_NAMES: Final = 1_000  # tools and prompts that are named; more than any server should have
_MAX_UNLISTED: Final = 100  # beyond which a tool that only fails is not named


@lru_cache(maxsize=8)
def _alive_of(_provider: MeterProvider | None) -> dict[object, tuple[str, int]]:
    """Return how many sessions live, by who counted them: a provider knows one gauge of a name."""
    return {}


class SessionMetrics:
    """Counts sessions and measures operations: `Telemetry(metrics=SessionMetrics())`.

    Args:
        meter_provider: Receives the metrics; by default the global one.
    """

    def __init__(self, meter_provider: MeterProvider | None = None) -> None:
        meter = get_meter(SCOPE, names.package_version(), meter_provider, names.SCHEMA_URL)
        self._meter: Final = meter
        self._created: Final = meter.create_counter(CREATED, "{session}", "Sessions that were created")
        self._ended: Final = meter.create_counter(ENDED, "{session}", "Sessions that ended, by reason")
        self._refused: Final = meter.create_counter(REFUSED, "{request}", "Requests that were refused, by reason")
        self._calls: Final = meter.create_counter(CALLS, "{call}", "Tool calls, by tool and outcome")
        self._alive: Final = _alive_of(meter_provider)
        text = "The duration of the MCP session as observed on the MCP server."
        self._session_duration: Final = meter.create_histogram(
            SESSION_DURATION, "s", text, explicit_bucket_boundaries_advisory=SESSION_BUCKETS
        )
        text = "MCP request or notification duration as observed on the receiver."
        self._operation_duration: Final = meter.create_histogram(
            OPERATION_DURATION, "s", text, explicit_bucket_boundaries_advisory=OPERATION_BUCKETS
        )
        self._names: Final[set[tuple[str, str]]] = set()
        self.begin()

    def begin(self) -> None:
        """Let the counters begin at 0; again at the server's start, since the process's own provider may come later."""
        self._created.add(0)
        for reason in (*ENDS, OTHER):
            self._ended.add(0, {REASON: reason})
        for reason in (*REFUSALS, OTHER):
            self._refused.add(0, {REASON: reason})
        for tool in (OTHER, *(name for method, name in self._names if method == CALL)):
            self._begin_tool(tool)

    def _begin_tool(self, tool: str) -> None:
        for outcome in OUTCOMES:
            self._calls.add(0, {TOOL: tool, OUTCOME: outcome})

    def follow(self) -> None:
        """Offer the gauge of live sessions, for a middleware that tracks them."""
        self._meter.create_observable_gauge(ACTIVE, [self._observe_alive], "{session}", "Sessions that are alive")

    def alive(self, source: object, audience: str, number: int | None) -> None:
        """Take over how many sessions live, as one middleware's store has it; None where another process says so."""
        if number is None:
            self._alive.pop(source, None)
        else:
            self._alive[source] = audience, number

    def _observe_alive(self, _: CallbackOptions) -> Iterable[Observation]:
        live = Counter[str]()
        for audience, number in list(self._alive.values()):
            live[audience] += number
        return [Observation(number, {names.AUDIENCE: audience}) for audience, number in live.items()]

    def __call__(self, fact: Fact) -> None:
        if isinstance(fact, SessionCreated):
            self._created.add(1)
        elif isinstance(fact, SessionDeleted):
            reason = {REASON: fact.reason if fact.reason in ENDS else OTHER}
            self._ended.add(1, reason)
            self._session_duration.record(fact.seconds, {**names.HTTP, **reason})
        elif isinstance(fact, RequestRefused):
            self._refused.add(1, {REASON: fact.reason if fact.reason in REFUSALS else OTHER})

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
        attributes: dict[str, str] = {METHOD: message.method if message.method in METHODS else OTHER, **names.HTTP}
        if version is not None:
            attributes[names.PROTOCOL_VERSION] = version if version in VERSIONS else OTHER
        if message.method == CALL:
            attributes[names.OPERATION] = names.EXECUTE_TOOL
        for tool in outcome.tools:
            self._learn(CALL, tool, _MAX_NAMES)
        if (target := target_of(message)) is not None:
            attributes[TARGET_ATTRIBUTES[message.method]] = name = self._bounded(message.method, target, outcome)
            if message.method == CALL:
                ending = SUCCEEDED if outcome.error is None else TOOL_ERROR if outcome.error == TOOL_ERROR else FAILED
                self._calls.add(1, {TOOL: name, OUTCOME: ending})
        if outcome.error is not None:
            attributes[names.ERROR_TYPE] = outcome.error
        if outcome.code is not None:
            attributes[names.STATUS_CODE] = outcome.code
        self._operation_duration.record(seconds, attributes)

    def _bounded(self, method: str, target: str, outcome: Outcome) -> str:
        """Return a target that exists, else `_OTHER`: any client can call tools that do not, each a new series.

        It exists where the server lists it, where it has succeeded, and where the tool itself has failed.
        """
        if outcome.error is None:
            self._learn(method, target, _MAX_NAMES)
        elif outcome.error == TOOL_ERROR and not outcome.is_unknown:
            self._learn(method, target, _MAX_UNLISTED)
        return target if (method, target) in self._names else OTHER

    def _learn(self, method: str, target: str, most: int) -> None:
        if (method, target) not in self._names and len(self._names) < most:
            self._names.add((method, target))
            if method == CALL:
                self._begin_tool(target)
