"""`SessionMetrics`: sessions created, alive, refused and ended, and how long they and operations take.

Names and units are OpenTelemetry's where it has them. Every counter begins at 0, so that a rate sees the first burst.
No metric carries a session or anything else without bound: what the protocol, or the server's own lists, do not know
is `_OTHER`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation, get_meter

from .._protocol.headers import HANDSHAKE_VERSIONS
from .._refusals import ENDS, REFUSALS
from .._session.events import RequestRefused, SessionCreated, SessionDeleted, SessionEvent
from . import _attributes as names
from ._attributes import CALL, METHOD, METHODS, OTHER, REASON, SCOPE, TOOL
from ._context import request_info
from ._core import harmless
from ._outcome import OUTCOMES, RequestTelemetry

OPERATION_BUCKETS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Seconds, as the conventions advise."""
SESSION_BUCKETS: Final = (1.0, 10.0, 60.0, 300.0, 1800.0, 3600.0, 14_400.0, 43_200.0, 86_400.0, 259_200.0, 604_800.0)
"""Seconds, to seven days: logical sessions outlive the five minutes that the conventions advise for connections."""

STORE_BUCKETS: Final = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds, from a file on this machine to a store that is too slow."""

OUTCOME: Final = "mcp_sessions.outcome"
STORE_CALL: Final = "mcp_sessions.store.call"
VERSIONS: Final = HANDSHAKE_VERSIONS | {"2026-07-28"}
HTTP_VERSIONS: Final = frozenset({"1.0", "1.1", "2", "3"})


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
        count = meter.create_counter
        self._created: Final = count("mcp_sessions.session.created", "{session}", "Sessions that were created")
        self._ended: Final = count("mcp_sessions.session.ended", "{session}", "Sessions that ended, by reason")
        self._refused: Final = count(
            "mcp_sessions.request.refused", "{request}", "Requests that were refused, by reason"
        )
        self._calls: Final = count("mcp_sessions.tool.calls", "{call}", "Tool calls, by tool and outcome")
        self._provider: Final = meter_provider
        text = "The duration of the MCP session as observed on the MCP server."
        self._session_duration: Final = meter.create_histogram(
            "mcp.server.session.duration", "s", text, explicit_bucket_boundaries_advisory=SESSION_BUCKETS
        )
        text = "MCP request or notification duration as observed on the receiver."
        self._operation_duration: Final = meter.create_histogram(
            "mcp.server.operation.duration", "s", text, explicit_bucket_boundaries_advisory=OPERATION_BUCKETS
        )
        text = "How long clients waited for a refusal, by its reason."
        self._refusal_duration: Final = meter.create_histogram(
            "mcp_sessions.refusal.duration", "s", text, explicit_bucket_boundaries_advisory=OPERATION_BUCKETS
        )
        text = "The duration of a call of the session store, with waiting for a connection."
        self._store_duration: Final = meter.create_histogram(
            "mcp_sessions.store.duration", "s", text, explicit_bucket_boundaries_advisory=STORE_BUCKETS
        )
        self._tools: Final = {OTHER}
        self.begin()

    def begin(self) -> None:
        """Let the counters begin at 0; again at the server's start, since the process's own provider may come later."""
        self._created.add(0)
        for reason in (*ENDS, OTHER):
            self._ended.add(0, {REASON: reason})
        for reason in (*REFUSALS, OTHER):
            self._refused.add(0, {REASON: reason})
        for tool in self._tools:
            self._begin_tool(tool)

    def _begin_tool(self, tool: str) -> None:
        for outcome in OUTCOMES:
            self._calls.add(0, {TOOL: tool, OUTCOME: outcome})

    def follow(self) -> None:
        """Offer the gauge of live sessions, for a middleware that tracks them."""
        self._alive = _alive_of(self._provider)
        name, text = "mcp_sessions.session.active", "Sessions that are alive"
        self._meter.create_observable_gauge(name, [self._observe_alive], "{session}", text)

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

    def __call__(self, fact: SessionEvent) -> None:
        if isinstance(fact, SessionCreated):
            self._created.add(1)
        elif isinstance(fact, SessionDeleted):
            reason = {REASON: fact.reason if fact.reason in ENDS else OTHER}
            self._ended.add(1, reason)
            info = request_info.get()
            versions = names.HTTP if info is None else info.versions  # a session that expires ends outside of a request
            self._session_duration.record(fact.seconds, {**_bounded(versions), **reason})
        elif isinstance(fact, RequestRefused):
            self._refused.add(1, {REASON: fact.reason if fact.reason in REFUSALS else OTHER})

    @harmless
    def store_call(self, method: str, outcome: str, seconds: float) -> None:
        """Record one call of the session store: a method of `Store`, and a reason of `REFUSALS` if it failed."""
        known = outcome if outcome in {"success", "error"} or outcome in REFUSALS else OTHER
        self._store_duration.record(seconds, {STORE_CALL: method, OUTCOME: known})

    def operation(self, request: RequestTelemetry) -> None:
        """Record how one message ended, and how long its client waited, refusals apart."""
        message, known, outcome = request.message, request.known, request.outcome
        method = message.method if message.method in METHODS else OTHER
        for tool in outcome.tools:
            self._learn(known.bounded(CALL, tool))
        target = None if request.target is None else known.bounded(method, request.target)
        if method == CALL and target is not None:
            self._learn(target)
            self._calls.add(1, {TOOL: target, OUTCOME: outcome.word})
        if request.is_refused:
            reason = outcome.reason if outcome.reason in REFUSALS else OTHER
            self._refusal_duration.record(request.seconds, {REASON: reason})
            return
        ended = {names.ERROR_TYPE: outcome.error, names.STATUS_CODE: outcome.code}
        attributes = {METHOD: method, **_bounded(request.versions), **names.target_attributes(method, target)}
        attributes.update((name, value) for name, value in ended.items() if value is not None)
        self._operation_duration.record(request.seconds, attributes)

    def _learn(self, tool: str) -> None:
        if tool not in self._tools:
            self._tools.add(tool)
            self._begin_tool(tool)


def _bounded(versions: Mapping[str, str]) -> dict[str, str]:
    """Return the attributes of the transport without what a client may have made up."""
    allowed = {names.PROTOCOL_VERSION: VERSIONS, names.HTTP_VERSION: HTTP_VERSIONS}
    return {name: value if value in allowed.get(name, (value,)) else OTHER for name, value in versions.items()}
