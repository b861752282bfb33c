"""Telemetry per session: spans, metrics and log records that tools can group.

Only OpenTelemetry's API is used; which SDK records it, and where it is sent, is the application's choice.
No credential and no message body gets into telemetry: a session is named by its `ref`. Arguments and results of calls
do where the application asks for them (`redact=`), and as it leaves them.
"""

from .log_filter import SessionLogFilter
from .metrics import SessionMetrics
from .processor import SessionSpanProcessor
from .sampler import SessionSampler

__all__ = ["SessionLogFilter", "SessionMetrics", "SessionSampler", "SessionSpanProcessor"]
