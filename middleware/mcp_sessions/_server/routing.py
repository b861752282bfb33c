"""How an application routes requests: what a request to a path may pass through, and where one request leads.

The application is walked along what its routes may serve, without running its code. `Routing` follows a path that is
not spelled as the endpoint through the application's own routes. A pattern serves more than it shows: `^/mcp$` matches
a path that ends in a line feed, and `FastAPI(root_path="/api")` serves `/api/mcp`, too. A request that only the server
sees would evade every policy.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from contextlib import suppress
from types import CellType, FunctionType, MemberDescriptorType, MethodType
from typing import Any, Final, Literal

from starlette.applications import Starlette
from starlette.routing import BaseRoute, Match, Mount, Route, WebSocketRoute
from starlette.types import Scope

from .._protocol.headers import LAST_EVENT_ID, SESSION_HEADER

_EMPTY: Final = CellType()  # a name that is not bound yet, or no longer
ROUTERS_OWN: Final = frozenset({"Router.app", "APIRouter.app"})  # methods that do no more than look at the routes
_INNER: Final = ("app", "router", "middleware_stack", "endpoint")
_INNER_LISTS: Final = ("routes", "user_middleware")


def parts(app: object, endpoint: str | None) -> Iterator[object]:
    """Yield everything that a request to the endpoint may pass through."""
    return (part for part, _ in walk(app, endpoint))


def reachable(app: object, endpoint: str | None) -> Iterator[object]:
    """Yield these parts, and what those that are plain functions or methods refer to."""
    for part in parts(app, endpoint):
        yield part
        yield from references(part)


def references(part: object) -> Iterator[object]:
    """Yield what a plain function or method refers to."""
    if isinstance(part, MethodType):
        yield part.__self__
    if isinstance(part, FunctionType):
        yield from (cell.cell_contents for cell in part.__closure__ or () if cell != _EMPTY)
        yield from (part.__globals__[name] for name in part.__code__.co_names if name in part.__globals__)


def walk(app: object, endpoint: str | None, *, into_routes: bool = True) -> Iterator[tuple[object, str | None]]:
    """Yield the parts, each with the endpoint as that part sees it."""
    seen: dict[tuple[int, str | None], object] = {}  # with the parts, so that no other one gets the id of one
    ahead: list[tuple[object, str | None]] = [(app, endpoint)]
    while ahead:
        part, path = ahead.pop()
        if (id(part), path) in seen or not _may_serve(part, path):
            continue
        seen[id(part), path] = part
        yield part, path
        if into_routes or not isinstance(part, Route):
            ahead += [(inner, _below(part, path)) for inner in inside(part)]


def inside(part: object) -> Iterator[object]:
    if _is_included(part):
        yield from _included(part)
        return
    for name in _INNER:
        if (inner := attribute(part, name)) is not None:
            yield inner
    for name in _INNER_LISTS:
        listed = attribute(part, name)
        yield from listed if isinstance(listed, (list, tuple)) else ()


def _is_included(part: object) -> bool:
    """Whether a part is what FastAPI makes of a router that it includes."""
    return hasattr(type(part), "effective_candidates")


def _included(part: Any) -> Iterator[object]:
    """Yield the routes of an included router, with the paths that they have where it is included."""
    for one in part.effective_candidates():
        route = getattr(one, "original_route", one)
        made = getattr(one, "starlette_route", None)
        if made is None and isinstance(route, Route):
            made = Route(one.path, route.endpoint, methods=list(route.methods or ()))
        yield made or one


def attribute(part: object, name: str) -> Any:
    """Return an attribute without running a property's code."""
    value = inspect.getattr_static(part, name, None)
    return getattr(part, name, None) if isinstance(value, MemberDescriptorType) else value


def _may_serve(part: object, endpoint: str | None) -> bool:
    """Whether a request at the endpoint, or below it, may reach this part. In doubt, it may."""
    if isinstance(part, WebSocketRoute):
        return False
    if endpoint is None or not isinstance(part, (Route, Mount)) or "{" in part.path:
        return True
    path = part.path.rstrip("/")
    return _is_within(path, endpoint) or (isinstance(part, Mount) and _is_within(endpoint, path))


def _below(part: object, endpoint: str | None) -> str | None:
    """Return the endpoint as the inside of a part sees it; None where that is unknown."""
    if endpoint is None:
        return None
    root = attribute(part, "root_path")
    if isinstance(part, Starlette) and isinstance(root, str) and root and _is_within(endpoint, root):  # FastAPI's
        return endpoint[len(root) :]
    if not isinstance(part, Mount):
        return endpoint
    path = part.path.rstrip("/")
    return endpoint[len(path) :] if _is_within(endpoint, path) else None


def _is_within(path: str, other: str) -> bool:
    return path == other or path.startswith(other + "/")


def is_a(part: object, name: str) -> bool:
    return any(base.__name__ == name for base in class_of(part).__mro__)


def class_of(part: object) -> type:
    noted = attribute(part, "cls")  # what `add_middleware` wrote down, to be built later
    return noted if isinstance(noted, type) else type(part)


# --- where a request is ---

Place = Literal["endpoint", "possible", "elsewhere"]
"""At the endpoint every POST is MCP. A JSON POST may be below it, where a mounted server may answer (`Mount("/mcp",
app)`), or on any path where no endpoint is configured. Elsewhere nothing is."""

WITHOUT_BODY: Final = frozenset({"GET", "HEAD", "OPTIONS", "DELETE"})
"""Methods whose body means nothing (RFC 9110, 9.3). Some servers run a message that comes by any other one."""

_CARRIED: Final = frozenset({SESSION_HEADER, LAST_EVENT_ID})
_KEEP_PATHS: Final = frozenset({"starlette", "fastapi", "fastmcp", "mcp", "mcp_sessions", "opentelemetry"})
"""Packages whose applications and middlewares route by the path that they were given, or pass it on as it came."""


def place_of(scope: Scope, endpoint: str | None) -> Place:
    """Return where a request is by its spelling; `endpoint` is without a trailing slash, or None for every path.

    What counts is `scope["path"]`, decoded, without the `root_path` of mounts and proxies.
    """
    if endpoint is None:
        return "possible"
    path = route_path(scope) if scope.get("root_path") else scope["path"]
    if path == endpoint or path.rstrip("/") == endpoint:
        return "endpoint"
    return "possible" if path.startswith(endpoint + "/") else "elsewhere"


def route_path(scope: Scope) -> str:
    """Return the path below `root_path`, exactly as Starlette's routing takes it."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    if path == root:
        return ""
    below = path.startswith(root) and path[len(root)] == "/"
    return path[len(root) :] if root and below else path


class Routing:
    """Where requests are, by their path and by what the wrapped application makes of it.

    `in_doubt` is the place of a path that may lead to the server, but need not.
    """

    def __init__(self, app: object, endpoint: str | None, *, in_doubt: Place) -> None:
        self._app: Final = app
        self._endpoint: Final = endpoint
        self._in_doubt: Final = in_doubt
        self._route: Route | None = None  # of the endpoint, once it is found
        self.is_in_doubt = False  # whether the server may be elsewhere

    def place(self, scope: Scope) -> Place:
        place, endpoint = place_of(scope, self._endpoint), self._endpoint
        if place != "elsewhere" or endpoint is None:
            return place
        if scope["method"] in WITHOUT_BODY and not any(map(_may_concern_streams, scope["headers"])):
            return "elsewhere"
        if self.is_in_doubt and scope["method"] not in WITHOUT_BODY:
            return self._in_doubt
        try:
            path, end = _follow(self._app, {**scope})
        except Exception:  # noqa: BLE001  # a route's own, which the application will meet as well
            return self._in_doubt
        if end is None:
            return "elsewhere"
        path = path.rstrip("/")
        is_same = _endpoint_of(end) is _endpoint_of(self._own(endpoint))  # perhaps by another route
        if path.startswith(endpoint + "/"):
            return "possible"
        if isinstance(end, Route):
            is_endpoint = path == endpoint or is_same
            return ("possible" if "{" in path else "endpoint") if is_endpoint else "elsewhere"
        if path == endpoint:
            return "possible"
        # An application that cannot be looked into, mounted above the endpoint or in no router at all.
        return self._in_doubt if is_same or endpoint.startswith(path + "/") else "elsewhere"

    def _own(self, endpoint: str) -> object:
        """Return what serves the endpoint. Only a route is certain: Starlette is built at its first request."""
        if self._route is not None:
            return self._route
        end = _end_at(self._app, endpoint)
        self._route = end if isinstance(end, Route) else None
        return end


def _may_concern_streams(header: tuple[bytes, bytes]) -> bool:
    """Whether a request without a body may be about a session or a stream, whose event ids leave signed."""
    name, value = header
    return name in _CARRIED or (name == b"accept" and b"event-stream" in value.lower())


def _end_at(app: object, endpoint: str) -> object:
    """Return what serves an endpoint in its usual spelling, or None."""
    with suppress(Exception):
        return _follow(app, {"type": "http", "method": "POST", "path": endpoint, "root_path": "", "headers": []})[1]
    return None


def _endpoint_of(end: object) -> object:
    return end.endpoint if isinstance(end, Route) else end


def _follow(part: Any, scope: dict[str, Any], path: str = "") -> tuple[str, object]:
    """Follow a request through a part of the application, as each router on its way would route it.

    Return the routes' patterns, joined, and what they lead to: a route, an application of unknown routes, or None.
    """
    routes = _routes(part)
    if routes is not None:
        route, child = _match(routes, scope)
        if route is None:
            default = part.__self__.default  # an included router is entered only for a route of its own
            return path, (None if getattr(default, "__self__", None) is part.__self__ else default)
        scope.update(child)
        path += getattr(route, "path", None) or ""
        # What FastAPI makes of a route that it includes.
        made = getattr(route, "starlette_route", None) or getattr(route, "original_route", route)
        return _follow(made, scope, path)
    inner = None if isinstance(part, Route) or not keeps_path(part) else _inner(part, scope)
    return (path, part) if inner is None else _follow(inner, scope, path)


def _routes(part: Any) -> Iterable[Any] | None:
    """Return the routes that a part tries in order, or None where it is not a router's own method."""
    if getattr(part, "__qualname__", None) in ROUTERS_OWN:
        routes: Iterable[Any] = part.__self__.routes
        return routes
    return part.effective_candidates() if _is_included(part) else None


def _match(routes: Iterable[Any], scope: Scope) -> tuple[Any, dict[str, Any]]:
    partial: tuple[Any, dict[str, Any]] = None, {}
    for route in routes:
        match, child = route.matches(scope)
        if match is Match.FULL:
            return route, dict(child)
        if match is Match.PARTIAL and partial[0] is None:
            partial = route, dict(child)
    return partial


def _inner(part: Any, scope: dict[str, Any]) -> Any:
    """Return what a part passes requests to; None where that is unknown."""
    if isinstance(part, Starlette):
        if root_path := getattr(part, "root_path", ""):  # FastAPI's
            scope["root_path"] = root_path
        # Before it is built, the stack is known only if nothing was added to it.
        return part.middleware_stack or (None if part.user_middleware else part.router)
    return getattr(part, "middleware_stack", None) or getattr(part, "app", None)


def keeps_path(part: Any) -> bool:
    """Whether a part is certain to pass requests on with the path that they came with."""
    kind = class_of(part)
    runs = [kind.handle if issubclass(kind, BaseRoute) else kind.__call__, getattr(kind, "dispatch", None)]
    given = attribute(part, "kwargs")
    runs += [attribute(part, "dispatch_func"), given.get("dispatch") if isinstance(given, dict) else None]
    modules = [getattr(one, "__module__", None) or "" for one in runs if one is not None]
    return all(module.partition(".")[0] in _KEEP_PATHS for module in modules)
