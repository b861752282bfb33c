"""Who is told of what a middleware does: the options about telemetry, checked, and made into it when there is need.

Telemetry itself is imported at the first time that anybody is to be told, so that who does not trace pays
nothing for it, not even at the start.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from . import checks
from .errors import ConfigurationError
from .listeners import is_traced
from .tracing import Redact, Spans, Trace

if TYPE_CHECKING:
    from .telemetry.metrics import SessionMetrics
    from .telemetry.wiring import Telemetry


class Told(msgspec.Struct, frozen=True):
    """Who is told of what a middleware does.

    Args:
        tells: Whether anybody is, now.
        telemetry: What tells them, made at the first time: who does not trace imports no OpenTelemetry.
    """

    tells: Callable[[], bool]
    telemetry: Callable[[], Telemetry]

    @classmethod
    def of(cls, given: dict[str, Any]) -> Told:
        """The checked form of the options about telemetry.

        Raises:
            ConfigurationError: One is wrong; the message says what to write instead.
        """
        spans = checks.word("spans", given["spans"], get_args(Spans))
        trace = checks.word("trace", given["trace"], get_args(Trace))
        metrics: SessionMetrics | None = given["metrics"]
        if not (metrics is None or callable(getattr(metrics, "operation", None))):  # its class is not imported here
            raise ConfigurationError(f"metrics= takes a SessionMetrics(), not {type(metrics).__name__}")
        redact: Redact | None = checks.function("redact", given["redact"])
        tail = given["tail"]
        if not (tail is None or (isinstance(tail, str) and tail)):
            raise ConfigurationError(f"tail={tail!r} must be the path of a socket, as in tail='/run/mcp/tail.sock'")
        app, endpoint, tracked = given["app"], checks.path(given["path"]), given["tracked"]

        @cache
        def telemetry() -> Telemetry:
            from .telemetry.wiring import Telemetry

            return Telemetry(
                app, endpoint, spans=spans, trace=trace, metrics=metrics, redact=redact, tail=tail, tracked=tracked
            )

        if metrics is not None or tail is not None:
            return cls(lambda: True, telemetry)
        return cls(bool if spans == "off" else is_traced, telemetry)
