"""`add_sessions`: the middleware put where the application's own authentication has already spoken.

It goes in front of the innermost MCP app of a Starlette-like application: inside of what checks
bearer tokens, where the scope tells who the caller is. Nothing is guessed: no endpoint, or more
than one, is an error that says what to do.
"""

from __future__ import annotations

import copy
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from starlette.types import Scope

from ..errors import ConfigurationError
from ..middleware import MCPSessionMiddleware
from ..paths import Place
from ..placement import MISPLACED
from .endpoints import Endpoint, find, is_routed

App = TypeVar("App")


def add_sessions(app: App, *, path: str | None = None, **options: Any) -> App:
    """Give the MCP endpoint of an application sessions, inside of the application's authentication.

    The store is opened and closed, and `on_end` run for sessions that expire, in the lifespan of `app`. Where `app`
    is mounted in another application, hand its lifespan on, after this call, as in
    `FastAPI(lifespan=app.router.lifespan_context)`; else the first session opens the store, and nobody closes it.

    Args:
        app: What `streamable_http_app()` of the official SDK or `http_app()` of FastMCP returns, or a
            Starlette or FastAPI application that such a one is mounted in. It is changed in place.
        path: The full path of the MCP endpoint, as in `"/api/mcp"`. Needed where the endpoint is a
            function of your own, or where there are several. None finds the one there is.
        options: The options of `MCPSessionMiddleware`.

    Returns:
        The same application.

    Raises:
        ConfigurationError: No endpoint was found, more than one was, it has sessions already, or an
            option is wrong. The message says what to do.
    """
    if not is_routed(app):
        raise ConfigurationError(
            f"add_sessions() looks for a route and {type(app).__name__} has none; "
            "wrap the application instead: MCPSessionMiddleware(app, ...)"
        )
    endpoints = _known(app) if path is None else _at(app, path)
    if any(endpoint.has_sessions for endpoint in endpoints):
        raise ConfigurationError(f"{_name(endpoints[0])} has sessions already; add them once")
    _place(app, endpoints, options)
    return app


def _known(app: object) -> list[Endpoint]:
    """The endpoints of the one MCP server that is known by its class."""
    endpoints = [endpoint for endpoint in find(app) if endpoint.serves_mcp]
    if not endpoints:
        raise ConfigurationError(
            "add_sessions() found no endpoint of the official SDK or FastMCP; name its route with path=, "
            "as in path='/mcp', or wrap the application: MCPSessionMiddleware(app, ...)"
        )
    if len({id(endpoint.owner) for endpoint in endpoints}) > 1:
        paths = ", ".join(sorted({_name(endpoint) for endpoint in endpoints}))
        raise ConfigurationError(f"add_sessions() found several MCP endpoints ({paths}); say which with path=")
    return endpoints


def _at(app: object, path: str) -> list[Endpoint]:
    """The endpoints of the one router that has routes at a path: GET and POST may be two of them."""
    if not path.startswith("/"):
        raise ConfigurationError(f"path={path!r} must begin with '/', as in path='/mcp'")
    everywhere = find(app)
    here = [endpoint for endpoint in everywhere if endpoint.path == path.rstrip("/")]
    endpoints = [endpoint for endpoint in here if not endpoint.is_subtree] or here[-1:]
    if not any(endpoint.posts for endpoint in endpoints):
        others = ", ".join(sorted({_name(endpoint) for endpoint in everywhere if endpoint.posts})) or "none"
        raise ConfigurationError(
            f"no route takes POST at path={path!r} (those that do: {others}); "
            "correct path=, or wrap the application: MCPSessionMiddleware(app, ...)"
        )
    if len({id(endpoint.router) for endpoint in endpoints}) > 1:
        raise ConfigurationError(
            f"several routers serve path={path!r}; call add_sessions() with the sub-application that is meant"
        )
    return endpoints


def _name(endpoint: Endpoint) -> str:
    return endpoint.path or "/"


# --- placed --------------------------------------------------------------------------------------


class _AtEndpoint(MCPSessionMiddleware):
    """The middleware inside of a route: whatever comes here came for the endpoint."""

    def _where(self, _: Scope, /) -> Place:
        return Place.ENDPOINT


def _place(app: object, endpoints: list[Endpoint], options: dict[str, Any]) -> None:
    first = endpoints[0]
    middleware = MCPSessionMiddleware if first.is_subtree else _AtEndpoint
    made = middleware(first.app, path=None, **options)
    if made.fault == MISPLACED:
        raise ConfigurationError(
            f"the application at {_name(first)} authenticates its callers inside; give path= the full path of the "
            "MCP route in it, or pass principal=, a function of the ASGI scope that tells who the caller is"
        )
    for endpoint in {(id(one.holder), one.attribute): one for one in endpoints}.values():
        placed = copy.copy(made)  # the routes of one endpoint share their keys and their store
        placed.app = endpoint.app
        endpoint.put(placed)
    _live_with(app, made)


def _live_with(app: Any, middleware: MCPSessionMiddleware) -> None:
    """Begin and end with the application, whose start no route sees."""
    while not isinstance(getattr(app, "routes", None), list):
        app = app.app
    router: Any = getattr(app, "router", app)
    own, fault = router.lifespan_context, middleware.fault

    def lifespan(app: object) -> AbstractAsyncContextManager[Any]:
        if fault is None:
            return middleware.beside.around(own, app)
        # Not before: an error at import would have Uvicorn's workers die and return for ever.
        raise ConfigurationError(fault)

    router.lifespan_context = lifespan
