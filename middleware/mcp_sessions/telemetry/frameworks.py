"""Trace context for handlers that run elsewhere than their message came in.

In the stateful mode of SDK 1.x, and so of FastMCP 3, a handler runs in a task of its connection, where what is current
is what was when the connection began: what it starts would hang below another message's span, or none. So each handler
of such a server is led by its request, whose ASGI scope says what was current when the message came. That is done once,
at the first message of a process that traces, and for handlers that the server has by then.

Whether the wrapped server makes a server span of its own for each request, so that a second one would be double.

SDK 2.x does by a middleware of its own that an application may take out; FastMCP does unless its setting
`telemetry_mode` says otherwise. They are known by their class names, so neither has to be installed, and
found where a request to the endpoint would come by. No code of the application runs meanwhile.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping
from types import CellType, FunctionType, MethodType
from typing import Any, Final

from opentelemetry import context as contexts
from opentelemetry.context import Context, create_key, get_value, set_value

from .._session.current import framework_scope

TRACE: Final = "mcp_sessions.trace"
"""Where a scope says what was current when its message came."""
_SDK: Final = "mcp.server.lowlevel.server"
_LED: Final = "__led_by_mcp_sessions__"
_MESSAGE: Final = create_key("mcp_sessions.message")

Handler = Callable[[Any], Awaitable[Any]]


def lead(servers: Iterable[object]) -> bool:
    """Let the handlers of servers find the trace context of their own message.

    Args:
        servers: The servers behind the endpoint, as `instrumented` finds them.

    Returns:
        Whether there are any that need it, so that `place` has to be called.
    """
    if not hasattr(sys.modules.get(_SDK), "request_ctx"):  # SDK 2.x, whose handlers run where their messages come in
        return False
    tables = [table for server in servers if isinstance(table := getattr(server, "request_handlers", None), dict)]
    for table in tables:
        table.update({kind: _led(handler) for kind, handler in table.items() if not hasattr(handler, _LED)})
    return bool(tables)


def place(scope: MutableMapping[str, Any]) -> None:
    """Say on a request's scope what is current now."""
    scope[TRACE] = set_value(_MESSAGE, object())


def _led(handler: Handler) -> Handler:
    @functools.wraps(handler)
    async def led(request: Any) -> Any:
        kept: Context | None = (framework_scope() or {}).get(TRACE)
        # A handler may call another one; then what is current belongs to this message already.
        if kept is None or get_value(_MESSAGE) is get_value(_MESSAGE, kept):
            return await handler(request)
        token = contexts.attach(kept)
        try:
            return await handler(request)
        finally:
            contexts.detach(token)

    setattr(led, _LED, True)
    return led


_ENDPOINT: Final = "StreamableHTTPASGIApp"
_MANAGER: Final = "StreamableHTTPSessionManager"
_SDK_MIDDLEWARE: Final = "OpenTelemetryMiddleware"
_EMPTY: Final = CellType()  # a name that is not bound yet, or no more


def makes_server_spans(parts: Iterable[object]) -> bool:
    """Whether a request gets a server span from the server itself.

    Args:
        parts: What a request to the endpoint may come to, once the application has started: some make their
            endpoint only then.
    """
    return any(map(_does, _found(parts)))


def servers(parts: Iterable[object]) -> Iterator[object]:
    """The SDK's servers that a request may come to; FastMCP's are of that kind, too.

    Args:
        parts: What a request to the endpoint may come to, once the application has started.
    """
    return filter(None, map(_server, _found(parts)))


def _found(parts: Iterable[object]) -> Iterator[object]:
    return (one for part in parts for one in (part, *_reached(part)))


def _does(part: object) -> bool:
    if _is(part, _ENDPOINT) and type(part).__module__.startswith("fastmcp."):
        return _fastmcp_traces()
    middleware = getattr(_server(part), "middleware", ())
    return any(_is(entry, _SDK_MIDDLEWARE) for entry in middleware)


def _server(part: object) -> object:
    manager = getattr(part, "session_manager", None) if _is(part, _ENDPOINT) else part
    return getattr(manager, "app", None) if _is(manager, _MANAGER) else None


def _is(thing: object, name: str) -> bool:
    return any(cls.__name__ == name for cls in type(thing).__mro__)


def _fastmcp_traces() -> bool:
    settings = getattr(sys.modules.get("fastmcp"), "settings", None)
    return getattr(settings, "telemetry_mode", "native") == "native"


def _reached(part: object) -> Iterator[object]:
    """What a plain function can get at, and whose method it is: servers are often called from a few lines of one."""
    if isinstance(part, MethodType):
        yield part.__self__
    if isinstance(part, FunctionType):
        yield from (cell.cell_contents for cell in part.__closure__ or () if cell != _EMPTY)
        yield from (part.__globals__[name] for name in part.__code__.co_names if name in part.__globals__)
