"""Whether anybody traces in this process, now: asked at every request, so it costs next to nothing where nobody does.

OpenTelemetry is not imported here: one that was never imported has been given no provider. The API's own
function looks into the environment each time, which costs more than all else that a request without a session
costs here; so its variable is read, where it has one. A provider may be set at any time: no answer is kept.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, get_args

from . import checks
from .tracing import Spans, Trace

if TYPE_CHECKING:
    from .telemetry.metrics import SessionMetrics
    from .telemetry.wiring import Telemetry

_API: Final = "opentelemetry.trace"
_NOBODY: Final = frozenset({"NoneType", "ProxyTracerProvider", "NoOpTracerProvider"})
_UNKNOWN: Final = object()


def is_traced() -> bool:
    """Whether spans go anywhere: a tracer provider was set as the process's own, the SDK's or another one."""
    api: Any = sys.modules.get(_API)
    if api is None:
        return False
    provider = getattr(api, "_TRACER_PROVIDER", _UNKNOWN)
    return takes_spans(api.get_tracer_provider() if provider is _UNKNOWN else provider)


def takes_spans(provider: object) -> bool:
    """Whether a tracer provider is more than the stand-ins of OpenTelemetry's API."""
    return type(provider).__name__ not in _NOBODY


@dataclass(frozen=True, slots=True)
class Told:
    """Who is told of what a middleware does.

    Args:
        tells: Whether anybody is, now.
        telemetry: What tells them, made at the first time: who does not trace imports no OpenTelemetry.
    """

    tells: Callable[[], bool]
    telemetry: Callable[[], Telemetry]


def told(given: dict[str, Any]) -> Told:
    """The checked form of the options about telemetry.

    Raises:
        ConfigurationError: One is wrong; the message says what to write instead.
    """
    spans = checks.word("spans", given["spans"], get_args(Spans))
    trace = checks.word("trace", given["trace"], get_args(Trace))
    metrics: SessionMetrics | None = checks.function("metrics", given["metrics"])
    app, endpoint, tracked = given["app"], checks.path(given["path"]), given["tracked"]

    @cache
    def telemetry() -> Telemetry:
        from .telemetry.wiring import Telemetry

        return Telemetry(app, endpoint, spans=spans, trace=trace, metrics=metrics, tracked=tracked)

    if metrics is not None:
        return Told(lambda: True, telemetry)
    return Told(bool if spans == "off" else is_traced, telemetry)
