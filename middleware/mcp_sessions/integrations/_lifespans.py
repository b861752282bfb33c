"""Lifespans: several joined to one, and the middleware's own joined to an application's.

A server starts the outermost application alone, and a mounted MCP server that was never started answers nothing.
Sources: ASGI, Lifespan Protocol; Starlette's `lifespan=`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

from .._errors import ConfigurationError
from .._server.middleware import MCPSessionMiddleware

Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]
"""What Starlette and FastAPI take as `lifespan=`."""


def lifespan_of(*parts: Any) -> Lifespan:
    """Combine the lifespans of several applications, or your own, into one.

        app = FastAPI(lifespan=lifespan_of(database, mcp_app))

    Args:
        parts: Applications (`streamable_http_app()` of the official SDK, `http_app()` of FastMCP, any Starlette or
            FastAPI application, one that `MCPSessionMiddleware` wraps) and functions as `lifespan=` takes them.
            They start in this order and stop in reverse. Mappings that they yield are merged.

    Raises:
        ConfigurationError: One of the parts has no lifespan.
    """
    for part in parts:
        if not callable(part):
            raise ConfigurationError(f"lifespan_of() takes applications and lifespan functions, not {part!r}")

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[dict[str, Any]]:
        merged: dict[str, Any] = {}
        async with AsyncExitStack() as stack:
            for part in parts:
                state = await stack.enter_async_context(_lifespan_of(part, app))
                merged |= state if isinstance(state, Mapping) else {}
            yield merged

    return lifespan


def _lifespan_of(part: Any, app: Any) -> AbstractAsyncContextManager[Any]:
    if isinstance(part, MCPSessionMiddleware):
        if part.fault is not None:
            raise ConfigurationError(part.fault)
        return part.services.around(lambda inner: _lifespan_of(part.app, inner), part.app)
    router = getattr(part, "router", None)
    entered: AbstractAsyncContextManager[Any] = part(app) if router is None else router.lifespan_context(part)
    return entered


def join(app: Any, middleware: MCPSessionMiddleware) -> None:
    """Start and stop a middleware at a route with the application, whose lifespan no route sees."""
    router = getattr(app, "router", app)
    own, fault = router.lifespan_context, middleware.fault

    def lifespan(app: object) -> AbstractAsyncContextManager[Any]:
        if fault is None:
            return middleware.services.around(own, app)
        # Not before: an error at import makes Uvicorn's workers die and restart for ever.
        raise ConfigurationError(fault)

    router.lifespan_context = lifespan
