"""`add_sessions`: the middleware put where the application's own authentication has already spoken.

It goes in front of the innermost MCP app of a Starlette-like application: inside of what checks
bearer tokens, where the scope tells who the caller is. Nothing is guessed: no endpoint, or more
than one, is an error that says what to do.

Where an application serves MCP: every route's innermost ASGI app, with its full path.

The route tree of Starlette and FastAPI is walked down to the apps that no middleware stands in
front of any more. Nothing is called and nothing changed until `Endpoint.put`. Official SDK and
FastMCP endpoints are known by their class names, so neither has to be installed. FastAPI builds
what it serves from the routes of an included router: there, the route itself is what must change.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from starlette.routing import BaseRoute, Host, Mount, Route

from .._server.middleware import MCPSessionMiddleware
from .._server.placement import MISPLACED
from ..errors import ConfigurationError

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

    _is_at_endpoint = True


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


_SERVES_MCP: Final = frozenset({"StreamableHTTPASGIApp", "StreamableHTTPSessionManager"})


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An ASGI app at the end of a route, and the attribute that holds it.

    Args:
        path: The full path of its route, without a trailing slash.
        app: The application.
        holder: The object that holds it: a route, or the middleware in front of it.
        attribute: The name under which it is held.
        router: The router that its route belongs to.
        posts: Whether its route takes POST.
        has_sessions: Whether the middleware stands in front of it already.
        is_subtree: Whether it is a mounted app with routes of its own.
    """

    path: str
    app: Any
    holder: object
    attribute: str
    router: object
    posts: bool
    has_sessions: bool
    is_subtree: bool = False

    @property
    def owner(self) -> object:
        """What serves: the application, or the object whose method it is."""
        return getattr(self.app, "__self__", self.app)

    @property
    def serves_mcp(self) -> bool:
        """Whether it is the SDK's or FastMCP's endpoint, or holds the SDK's session manager."""
        return _is_known(self.owner) or _is_known(getattr(self.owner, "session_manager", None))

    def put(self, app: object) -> None:
        """Let the holder hold `app` instead."""
        setattr(self.holder, self.attribute, app)
        # FastAPI keeps what it made of an included router until the router says that it changed.
        if changed := getattr(self.router, "_mark_routes_changed", None):
            changed()


def _is_known(thing: object) -> bool:
    return any(cls.__name__ in _SERVES_MCP for cls in type(thing).__mro__)


def find(app: object) -> list[Endpoint]:
    """Every endpoint of a Starlette-like application, in the order of its routes."""
    return list(_in_app(app, _Way()))


def is_routed(app: object) -> bool:
    """Whether an application, or the one behind its middleware, has routes to look into."""
    seen: set[int] = set()
    while app is not None and id(app) not in seen:
        if _routes(app) is not None:
            return True
        seen.add(id(app))
        app = getattr(app, "app", None)
    return False


# --- the walk ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Way:
    """How the walk came to where it is."""

    path: str = ""
    holder: object = None
    attribute: str = "app"
    router: object = None
    posts: bool = True
    has_sessions: bool = False
    is_included: bool = False
    above: frozenset[int] = frozenset()

    def into(self, route: Mount | Host, path: str) -> _Way:
        return replace(self, path=self.path + path, holder=route, attribute="app", is_included=False)

    def end(self, app: object, *, is_subtree: bool = False) -> Endpoint:
        return Endpoint(
            path=self.path.rstrip("/"),
            app=app,
            holder=self.holder,
            attribute=self.attribute,
            router=self.router,
            posts=self.posts,
            has_sessions=self.has_sessions,
            is_subtree=is_subtree,
        )


def _routes(app: object) -> list[BaseRoute] | None:
    routes = getattr(app, "routes", None)
    return routes if isinstance(routes, list) else None


def _in_app(app: object, way: _Way) -> Iterator[Endpoint]:
    if id(app) in way.above:  # a router that is mounted in itself
        return
    way = replace(way, above=way.above | {id(app)}, has_sessions=way.has_sessions or _has_sessions(app))
    routes, inner = _routes(app), getattr(app, "app", None)
    if routes is not None:
        for route in routes:
            yield from _in_route(route, replace(way, router=app))
    elif callable(inner):
        yield from _in_app(inner, replace(way, holder=app, attribute="app"))
    elif way.holder is not None:
        yield way.end(app)


def _has_sessions(app: object) -> bool:
    entries = getattr(app, "user_middleware", ())
    classes = [type(app), *(getattr(entry, "cls", None) for entry in entries)]
    return any(isinstance(cls, type) and issubclass(cls, MCPSessionMiddleware) for cls in classes)


def _in_route(route: object, way: _Way) -> Iterator[Endpoint]:
    if isinstance(route, Route):
        yield from _at_route(route, way)
    elif isinstance(route, Mount):
        yield from _at_mount(route, way.into(route, route.path))
    elif isinstance(route, Host):
        yield from _in_app(route.app, way.into(route, ""))
    elif included := getattr(route, "original_router", None):  # FastAPI's `include_router`
        prefix = getattr(getattr(route, "include_context", None), "prefix", "")
        yield from _in_app(included, replace(way, path=way.path + prefix, is_included=True))


def _at_route(route: Route, way: _Way) -> Iterator[Endpoint]:
    posts = not route.methods or "POST" in route.methods
    way = replace(way, path=way.path + route.path, holder=route, posts=posts)
    if hasattr(route, "get_route_handler"):
        # A FastAPI route: what it serves is made anew for each inclusion, and only `handle` is in front of all.
        yield from _in_app(route.handle, replace(way, attribute="handle"))
    elif way.is_included:  # FastAPI makes a new route of the endpoint
        app = route.app if inspect.isroutine(route.endpoint) else route.endpoint
        yield from _in_app(app, replace(way, attribute="endpoint"))
    else:
        yield from _in_app(route.app, replace(way, attribute="app"))


def _at_mount(mount: Mount, way: _Way) -> Iterator[Endpoint]:
    found = list(_in_app(mount.app, way))
    yield from found
    if not any(endpoint.router is way.router for endpoint in found):
        yield way.end(mount.app, is_subtree=True)
