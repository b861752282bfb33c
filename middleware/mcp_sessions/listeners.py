"""Whether anybody traces in this process, now: asked at every request, so it costs next to nothing where nobody does.

OpenTelemetry is not imported here: one that was never imported has been given no provider. The API's own
function looks into the environment each time, which costs more than all else that a request without a session
costs here; so its variable is read, where it has one. A provider may be set at any time: no answer is kept.
"""

from __future__ import annotations

import sys
from typing import Any, Final

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
