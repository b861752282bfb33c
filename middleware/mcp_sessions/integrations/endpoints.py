"""Where an application serves MCP: every route's innermost ASGI app, with its full path.

The route tree of Starlette and FastAPI is walked down to the apps that no middleware stands in
front of any more. Nothing is called and nothing changed until `Endpoint.put`. Official SDK and
FastMCP endpoints are known by their class names, so neither has to be installed. FastAPI builds
what it serves from the routes of an included router: there, the route itself is what must change.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from starlette.routing import BaseRoute, Host, Mount, Route

from ..middleware import MCPSessionMiddleware

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
