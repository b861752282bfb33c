"""The words in which an application chooses its spans: which one a message gets, and what is one trace.

Only what needs no OpenTelemetry is here, so that options can be read, and labels told, where nobody asks for
it; `telemetry` does what the words say. Source: OpenTelemetry's semantic conventions for MCP.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from .session import Correlation

Spans = Literal["auto", "enrich", "server", "internal", "off"]
"""`"auto"`: a server span, unless the wrapped server makes its own; `"enrich"`: none, only the span around is
stamped; `"server"` and `"internal"`: always one, of that kind; `"off"`: no span at all."""

Trace = Literal["request", "session"]
"""`"request"`: a message belongs to its caller's trace and links to the session's start; `"session"`: it belongs
to the session's trace, and links to its caller."""


def attributes_of(correlation: Correlation) -> dict[str, str]:
    """What a span says of what a client calls its conversation.

    Args:
        correlation: The label. It never goes by the name of a session, since anybody may choose it.
    """
    return {"mcp_sessions.correlation": correlation.id, "mcp_sessions.correlation.source": correlation.source}


Content = Literal["arguments", "result"]

Redact = Callable[[Content, str, Any], Any]
"""Called with what it is, the tool's name and the value; gives what may be written of it, or None for nothing."""
