"""One lifespan made of several: what an application needs that other applications are mounted in.

A server starts the outermost application alone, and a mounted MCP server that was never started answers
nothing. Nothing is looked up before the start, so the order in which an application is put together does not
matter. Source: ASGI, Lifespan Protocol; Starlette's `lifespan=`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

from .._server.middleware import MCPSessionMiddleware
from ..errors import ConfigurationError

Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]
"""What Starlette and FastAPI take as `lifespan=`."""


def lifespan_of(*parts: Any) -> Lifespan:
    """One lifespan of several applications, or of lifespans of your own.

        app = FastAPI(lifespan=lifespan_of(database, mcp_app))

    Args:
        parts: Applications (`streamable_http_app()` of the official SDK, `http_app()` of FastMCP, any Starlette or
            FastAPI application, one that `MCPSessionMiddleware` wraps) and functions as `lifespan=` takes them.
            They start in this order and stop in the reverse. Of what they yield, mappings are merged.

    Raises:
        ConfigurationError: One of them has no lifespan.
    """
    for part in parts:
        if not callable(part):
            raise ConfigurationError(f"lifespan_of() takes applications and lifespan functions, not {part!r}")

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[dict[str, Any]]:
        merged: dict[str, Any] = {}
        async with AsyncExitStack() as stack:
            for part in parts:
                said = await stack.enter_async_context(_around(part, app))
                merged |= said if isinstance(said, Mapping) else {}
            yield merged

    return lifespan


def _around(part: Any, app: Any) -> AbstractAsyncContextManager[Any]:
    """What to enter for one part, as it is now."""
    if isinstance(part, MCPSessionMiddleware):
        if part.fault is not None:
            raise ConfigurationError(part.fault)
        return part.beside.around(lambda inner: _around(part.app, inner), part.app)
    router = getattr(part, "router", None)
    entered: AbstractAsyncContextManager[Any] = part(app) if router is None else router.lifespan_context(part)
    return entered
