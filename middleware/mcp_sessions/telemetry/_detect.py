"""What needs no import of OpenTelemetry: whether this process traces, and the values of the options.

The API's own function looks into the environment each time, so its variable is read. A provider may be set at any time,
so no answer is cached.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final, Literal

from .._session.claims import Correlation, Principal

_API: Final = "opentelemetry.trace"
_UNKNOWN: Final = object()

Spans = Literal["auto", "enrich", "server", "internal", "off"]
"""`"auto"`: a server span, unless the wrapped server makes its own; `"enrich"`: none, the attributes go on the span
around; `"server"` and `"internal"`: always one, of that kind; `"off"`: no span at all."""

Trace = Literal["request", "session"]
"""`"request"`: a message belongs to its caller's trace and links to the session's start; `"session"`: it belongs
to the session's trace, and links to its caller."""

Content = Literal["arguments", "result"]

Redact = Callable[[Content, str, Any], Any]
"""Called with the content's kind, the tool's name and the value; returns what may be written, or None for nothing."""

User = Callable[[Principal], "str | None"]
"""Called with the principal of a request; returns what of it may be written as `user.id`, or None for nothing."""


def is_traced() -> bool:
    """Whether spans go anywhere: the process has a tracer provider of its own, the SDK's or another one."""
    api: Any = sys.modules.get(_API)
    if api is None:
        return False
    provider = getattr(api, "_TRACER_PROVIDER", _UNKNOWN)
    if provider is None:
        return False
    return takes_spans(api.get_tracer_provider() if provider is _UNKNOWN else provider)


def takes_spans(provider: object) -> bool:
    """Whether a tracer provider is more than one of the API's stand-ins: others have classes of the same name."""
    return provider is not None and type(provider).__module__ != _API


def attributes_of(correlation: Correlation) -> dict[str, str]:
    """Return the attributes of a client's conversation label."""
    return {"mcp_sessions.correlation": correlation.id, "mcp_sessions.correlation.source": correlation.source}
