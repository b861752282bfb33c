"""Telemetry per session: spans, metrics and log records that tools can group.

Only OpenTelemetry's API is used, and it is imported when it is first asked for; which SDK records, and where it exports
to, is the application's choice. A session is named by its `ref`.
"""

from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .metrics import SessionMetrics
    from .processor import SessionLogFilter, SessionSampler, SessionSpanProcessor

__all__ = ["SessionLogFilter", "SessionMetrics", "SessionSampler", "SessionSpanProcessor"]

_MODULES: Final = MappingProxyType(
    {
        "SessionLogFilter": "processor",
        "SessionMetrics": "metrics",
        "SessionSampler": "processor",
        "SessionSpanProcessor": "processor",
    }
)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)
