"""Whether the wrapped server makes a server span of its own for each request, so that a second one would be double.

SDK 2.x does by a middleware of its own that an application may take out; FastMCP does unless its setting
`telemetry_mode` says otherwise. They are known by their class names, so neither has to be installed, and
found where a request to the endpoint would come by. No code of the application runs meanwhile.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CellType, FunctionType, MethodType
from typing import Final

from ..placement import parts

_ENDPOINT: Final = "StreamableHTTPASGIApp"
_MANAGER: Final = "StreamableHTTPSessionManager"
_SDK_MIDDLEWARE: Final = "OpenTelemetryMiddleware"
_EMPTY: Final = CellType()  # a name that is not bound yet, or no more


def makes_server_spans(app: object, endpoint: str | None) -> bool:
    """Whether a request to the endpoint gets a server span from the server itself.

    Args:
        app: The wrapped application, once it has started: some make their endpoint only then.
        endpoint: The MCP path without a trailing slash, or None for every path.
    """
    return any(map(_does, _found(app, endpoint)))


def servers(app: object, endpoint: str | None) -> Iterator[object]:
    """The SDK's servers that a request to the endpoint may come to; FastMCP's are of that kind, too.

    Args:
        app: The wrapped application, once it has started.
        endpoint: The MCP path without a trailing slash, or None for every path.
    """
    return filter(None, map(_server, _found(app, endpoint)))


def _found(app: object, endpoint: str | None) -> Iterator[object]:
    return (one for part in parts(app, endpoint) for one in (part, *_reached(part)))


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
