"""Telemetry per session: spans, metrics and log records that tools can group by a session's `ref`.

Only OpenTelemetry's API is used, and it is imported on first use of a name; the application chooses the SDK.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .._session.claims import Correlation
from .._session.session import current_correlation

if TYPE_CHECKING:
    from ._inspector import Inspector
    from ._metrics import SessionMetrics
    from ._processor import SessionLogFilter, SessionSampler, SessionSpanProcessor

__all__ = [
    "Correlation",
    "Inspector",
    "SessionLogFilter",
    "SessionMetrics",
    "SessionSampler",
    "SessionSpanProcessor",
    "current_correlation",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = {"Inspector": "._inspector", "SessionMetrics": "._metrics"}.get(name, "._processor")
    return getattr(import_module(module, __name__), name)
