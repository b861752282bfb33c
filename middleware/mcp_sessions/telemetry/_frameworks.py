"""Whether wrapped servers make spans themselves, and the context of their handlers.

Servers are known by class names, so none has to be installed. In the stateful mode of SDK 1.x, and so of FastMCP 3, a
handler runs in a task of its connection, so each is wrapped to restore the context of its own message from the scope.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from contextlib import AbstractContextManager
from random import getrandbits
from typing import Any, Final

from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY as _SUPPRESS
from opentelemetry.context import Context, create_key, get_value, set_value
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, get_current_span, set_span_in_context

from .._session.session import framework_scope
from ._context import attached

SCOPE_KEY: Final = "mcp_sessions.trace"  # of the context of a scope's message
_SDK: Final = "mcp.server.lowlevel.server"
_WRAPPED: Final = "__wrapped_by_mcp_sessions__"
_MESSAGE: Final = create_key("mcp_sessions.message")
_ENDPOINT: Final = "StreamableHTTPASGIApp"
_MANAGER: Final = "StreamableHTTPSessionManager"
_SDK_MIDDLEWARE: Final = "OpenTelemetryMiddleware"

Handler = Callable[[Any], Awaitable[Any]]


def wrap_handlers(servers: Iterable[object]) -> bool:
    """Let handlers run in the context of their own message; return whether any need it, and so `store_context`."""
    if not hasattr(sys.modules.get(_SDK), "request_ctx"):  # SDK 2.x, whose handlers run where their messages come in
        return False
    tables = [table for server in servers if isinstance(table := getattr(server, "request_handlers", None), dict)]
    for table in tables:
        new = {kind: restore_context(handler) for kind, handler in table.items() if not hasattr(handler, _WRAPPED)}
        table.update(new)
    return bool(tables)


def store_context(scope: MutableMapping[str, Any], context: Context | None = None) -> None:
    """Store a context, or the current one, on a request's scope."""
    scope[SCOPE_KEY] = set_value(_MESSAGE, object(), context)


def restore_context(handler: Handler) -> Handler:
    """Return a handler that runs in the context of its own message."""

    @functools.wraps(handler)
    async def restoring(request: Any) -> Any:
        stored: Context | None = (framework_scope() or {}).get(SCOPE_KEY)
        # Where one handler calls another, the current context is this message's already.
        if stored is None or get_value(_MESSAGE) is get_value(_MESSAGE, stored):
            return await handler(request)
        with attached(stored):
            return await handler(request)

    setattr(restoring, _WRAPPED, True)
    return restoring


def untraced() -> AbstractContextManager[None]:
    """Let what we ask the server ourselves leave no spans, though what it logs stays in the trace around.

    Instrumentations look for the key that suppresses them; servers make spans all the same, below a parent that is not
    sampled, so that no sampler but one that records everything keeps them.
    """
    around = get_current_span().get_span_context()
    trace_id, span_id = (around.trace_id, around.span_id) if around.is_valid else (getrandbits(128), getrandbits(64))
    parent = NonRecordingSpan(SpanContext(trace_id, span_id, is_remote=False, trace_flags=TraceFlags.get_default()))
    return attached(set_span_in_context(parent, set_value(_SUPPRESS, True)))


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
