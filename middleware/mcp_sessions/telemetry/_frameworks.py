"""What frameworks need: SDK 1.x, whose handlers run elsewhere, and the spans that SDK 2.x and FastMCP make themselves.

Servers are known by class names, so none has to be installed. In the stateful mode of SDK 1.x, and so of FastMCP 3, a
handler runs in a task of its connection, so each is wrapped to restore the context of its own message from the scope.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from contextlib import AbstractContextManager
from random import getrandbits
from typing import Any, Final

from opentelemetry.context import set_value
from opentelemetry.trace import SpanContext, TraceFlags, get_current_span

from .._session.session import framework_scope
from ._attributes import MCP_SESSION_ID
from ._context import RequestInfo, as_parent, attached, attributes_on, request_info, traceparent_of, without_parent
from ._outcome import RequestTelemetry

SCOPE_KEY: Final = "mcp_sessions.message"  # of the message on its scope
FASTMCP: Final = "fastmcp"  # its instrumentation scope
SERVERS: Final = frozenset({FASTMCP, "mcp-python-sdk"})
_SDK: Final = "mcp.server.lowlevel.server"
_WRAPPED: Final = "__wrapped_by_mcp_sessions__"
_ENDPOINT: Final = "StreamableHTTPASGIApp"
_MANAGER: Final = "StreamableHTTPSessionManager"
_SDK_MIDDLEWARE: Final = "OpenTelemetryMiddleware"

Handler = Callable[[Any], Awaitable[Any]]


# --- handlers of SDK 1.x -----------------------------------------------------------------------------


def wrap_handlers(servers: Iterable[object]) -> bool:
    """Let handlers run in the context of their own message; return whether any need it: then the scope has it."""
    if not hasattr(sys.modules.get(_SDK), "request_ctx"):  # SDK 2.x, whose handlers run where their messages come in
        return False
    tables = [table for server in servers if isinstance(table := getattr(server, "request_handlers", None), dict)]
    for table in tables:
        new = {kind: restore_context(handler) for kind, handler in table.items() if not hasattr(handler, _WRAPPED)}
        table.update(new)
    return bool(tables)


def restore_context(handler: Handler) -> Handler:
    """Return a handler that runs in the context of its own message."""

    @functools.wraps(handler)
    async def restoring(request: Any) -> Any:
        message: RequestTelemetry | None = (framework_scope() or {}).get(SCOPE_KEY)
        # Where one handler calls another, the current context is this message's already.
        if message is None or message is request_info.get():
            return await handler(request)
        with message.current():
            return await handler(request)

    setattr(restoring, _WRAPPED, True)
    return restoring


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


def claim(span: Any, info: RequestInfo | None) -> None:
    """Take a span that starts for the server span of its message, where it is the first one with the message's name.

    It ends with the answer, as ours does: until then it lacks the outcome, and a session that the message creates.
    """
    # FastMCP 3 asks for the list of tools below the first call.
    if not isinstance(info, RequestTelemetry) or not info.is_native or info.span is not None:
        return
    if span.name.partition(" ")[0] != info.message.method:
        return
    info.span = span
    for link in without_parent(info.links, span.parent):
        span.add_link(link.context, link.attributes)
    found = attributes_on(span)
    given = {**info.attributes, **info.arguments(span)}
    span.set_attributes({name: value for name, value in given.items() if name not in found})
    end = span.end

    def finish(end_time: int | None = None) -> None:
        if info.is_open:
            info.end_span = end
        else:
            end(end_time)

    span.end = finish


def keep_session_id(span: Any) -> None:
    """Keep our `mcp.session.id` on a span of FastMCP, which then writes one of its own over it."""
    set_attributes = span.set_attributes

    def keeping(attributes: Mapping[str, Any]) -> None:
        set_attributes({name: value for name, value in attributes.items() if name != MCP_SESSION_ID})

    span.set_attributes = keeping


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
