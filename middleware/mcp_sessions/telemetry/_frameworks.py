"""The server spans that SDK 2.x and FastMCP make themselves.

Servers are recognized by class names, so none has to be installed.
"""

from __future__ import annotations

import sys
from collections.abc import MutableMapping
from contextlib import AbstractContextManager
from random import getrandbits
from typing import Any, Final

from opentelemetry.context import set_value
from opentelemetry.trace import SpanContext, TraceFlags, get_current_span

from ._context import RequestInfo, as_parent, attached, attributes_on, traceparent_of, without_parent
from ._outcome import RequestTelemetry

FASTMCP: Final = "fastmcp"  # its instrumentation scope
SERVERS: Final = frozenset({FASTMCP, "mcp-python-sdk"})
_ENDPOINT: Final = "StreamableHTTPASGIApp"
_MANAGER: Final = "StreamableHTTPSessionManager"
_SDK_MIDDLEWARE: Final = "OpenTelemetryMiddleware"

# --- spans that servers make themselves --------------------------------------------------------------


def makes_server_spans(part: object) -> bool:
    """Whether a part that requests reach makes server spans: SDK 2.x's server, FastMCP's unless its settings say no."""
    if _is(part, _ENDPOINT) and type(part).__module__.startswith("fastmcp."):
        settings = getattr(sys.modules.get("fastmcp"), "settings", None)
        return getattr(settings, "telemetry_mode", "native") == "native"
    return any(_is(entry, _SDK_MIDDLEWARE) for entry in getattr(server_in(part), "middleware", ()))


def server_in(part: object) -> object:
    """Return the SDK's server, maybe FastMCP's, in a part that requests reach, or None."""
    manager = getattr(part, "session_manager", None) if _is(part, _ENDPOINT) else part
    return getattr(manager, "app", None) if _is(manager, _MANAGER) else None


def _is(thing: object, class_name: str) -> bool:
    return any(cls.__name__ == class_name for cls in type(thing).__mro__)


def enrich_server_span(span: Any, info: RequestInfo | None) -> None:
    """Add what is known of a message to the wrapped server's own span for it, as that span starts.

    It ends before the answer leaves, so the outcome is on the span around it.
    """
    # FastMCP 3 asks for the list of tools below the first call.
    if not isinstance(info, RequestTelemetry) or not info.is_native or info.server_span is not None:
        return
    if span.name.partition(" ")[0] != info.message.method:
        return
    info.server_span = span
    for link in without_parent(info.links, span.parent):
        span.add_link(link.context, link.attributes)
    found = attributes_on(span)
    span.set_attributes({name: value for name, value in info.attributes.items() if name not in found})


# --- what we ask the server ourselves ----------------------------------------------------------------


def untraced(question: MutableMapping[str, Any]) -> AbstractContextManager[None]:
    """Let what we ask the server ourselves leave no spans, though what it logs stays in the trace around.

    Instrumentations look for the key that suppresses them; servers make spans all the same, below a parent that is not
    sampled, so that no sampler but one that records everything keeps them. FastAPI takes it from the headers.
    """
    around = get_current_span().get_span_context()
    trace_id, span_id = (around.trace_id, around.span_id) if around.is_valid else (getrandbits(128), getrandbits(64))
    parent = SpanContext(trace_id, span_id, is_remote=False, trace_flags=TraceFlags.get_default())
    if around.is_valid:
        question["headers"] = [*question["headers"], (b"traceparent", traceparent_of(parent).encode())]
    return attached(as_parent(parent, set_value("suppress_instrumentation", True)))
