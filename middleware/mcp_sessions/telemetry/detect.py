"""Whether anybody traces in this process, now: asked at every request, so it costs next to nothing where nobody does.

OpenTelemetry is not imported here: one that was never imported has been given no provider. The API's own
function looks into the environment each time, which costs more than all else that a request without a session
costs here; so its variable is read, where it has one. A provider may be set at any time: no answer is kept.

The words in which an application chooses its spans: which one a message gets, and what is one trace.

Only what needs no OpenTelemetry is here, so that options can be read, and labels told, where nobody asks for
it; `telemetry` does what the words say. Source: OpenTelemetry's semantic conventions for MCP.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final, Literal

from .._session.claims import Correlation

_API: Final = "opentelemetry.trace"
_UNKNOWN: Final = object()


def is_traced() -> bool:
    """Whether spans go anywhere: a tracer provider was set as the process's own, the SDK's or another one."""
    api: Any = sys.modules.get(_API)
    if api is None:
        return False
    provider = getattr(api, "_TRACER_PROVIDER", _UNKNOWN)
    if provider is None:
        return False
    return takes_spans(api.get_tracer_provider() if provider is _UNKNOWN else provider)


def takes_spans(provider: object) -> bool:
    """Whether a tracer provider is more than the stand-ins of OpenTelemetry's API: others have one of the same name."""
    return provider is not None and type(provider).__module__ != _API


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
