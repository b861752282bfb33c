"""Where a request is: by its path, and by what the routes of the wrapped application make of the path."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final, Literal

from starlette.applications import Starlette
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Scope

from .._protocol.headers import LAST_EVENT_ID, SESSION_HEADER
from .route_tree import ROUTERS_OWN, attribute, class_of, is_included

Place = Literal["endpoint", "maybe_mcp", "elsewhere"]
"""At the endpoint every POST is an MCP message. Below it a JSON POST may be one, since a server may be mounted there
(`Mount("/mcp", app)`), and so it may on any path if no endpoint is configured. Elsewhere no request is."""

WITHOUT_BODY: Final = frozenset({"GET", "HEAD", "OPTIONS", "DELETE"})
"""Methods whose body means nothing (RFC 9110, 9.3). Some servers run a message that arrives with any other method."""

_STREAM_HEADERS: Final = frozenset({SESSION_HEADER, LAST_EVENT_ID})
_KEEP_PATHS: Final = frozenset({"starlette", "fastapi", "fastmcp", "mcp", "mcp_sessions", "opentelemetry"})
"""Packages whose applications and middlewares route by the path that they get, or pass it on unchanged."""


def place_of(scope: Scope, endpoint: str | None) -> Place:
    """Return the place of a request by the spelling of its path.

    Args:
        scope: The scope. Its `path` counts, decoded, without the `root_path` of mounts and proxies.
        endpoint: The path of the MCP endpoint without a trailing slash, or None for every path.
    """
    if endpoint is None:
        return "maybe_mcp"
    path = route_path(scope) if scope.get("root_path") else scope["path"]
    if path == endpoint or path.rstrip("/") == endpoint:
        return "endpoint"
    return "maybe_mcp" if path.startswith(endpoint + "/") else "elsewhere"


def route_path(scope: Scope) -> str:
    """Return the path below `root_path`, exactly as Starlette's routing takes it."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    if path == root:
        return ""
    below = path.startswith(root) and path[len(root)] == "/"
    return path[len(root) :] if root and below else path


class Routing:
    """Finds the place of requests, by their path and by the routes of the wrapped application.

    Args:
        app: The wrapped application.
        endpoint: The path of the MCP endpoint without a trailing slash, or None for every path.
        ambiguous_place: The place of a path that may lead to the MCP server, but need not.
    """

    def __init__(self, app: object, endpoint: str | None, *, ambiguous_place: Place) -> None:
        self._app: Final = app
        self._endpoint: Final = endpoint
        self._ambiguous_place: Final = ambiguous_place
        self._route: Route | None = None  # of the endpoint, once it is found
        self.is_ambiguous = False  # whether the MCP server may be at another path

    def place(self, scope: Scope) -> Place:
        """Return the place of a request."""
        place, endpoint = place_of(scope, self._endpoint), self._endpoint
        if place != "elsewhere" or endpoint is None:
            return place
        if scope["method"] in WITHOUT_BODY and not any(map(_may_concern_streams, scope["headers"])):
            return "elsewhere"
        if self.is_ambiguous and scope["method"] not in WITHOUT_BODY:
            return self._ambiguous_place
        try:
            path, end = _follow(self._app, {**scope})
        except Exception:  # noqa: BLE001  # of a route; the application will raise it, too
            return self._ambiguous_place
        if end is None:
            return "elsewhere"
        path = path.rstrip("/")
        is_same = _endpoint_of(end) is _endpoint_of(self._own(endpoint))  # perhaps by another route
        if path.startswith(endpoint + "/"):
            return "maybe_mcp"
        if isinstance(end, Route):
            is_endpoint = path == endpoint or is_same
            return ("maybe_mcp" if "{" in path else "endpoint") if is_endpoint else "elsewhere"
        if path == endpoint:
            return "maybe_mcp"
        # The end is an application of unknown routes, above the endpoint or behind no router.
        return self._ambiguous_place if is_same or endpoint.startswith(path + "/") else "elsewhere"

    def _own(self, endpoint: str) -> object:
        """Return what serves the endpoint. A route is kept; Starlette may still build its stack."""
        if self._route is not None:
            return self._route
        end = _end_at(self._app, endpoint)
        self._route = end if isinstance(end, Route) else None
        return end


def _may_concern_streams(header: tuple[bytes, bytes]) -> bool:
    """Return whether a header may make a request without a body concern a session or a stream."""
    name, value = header
    return name in _STREAM_HEADERS or (name == b"accept" and b"event-stream" in value.lower())


def _end_at(app: object, endpoint: str) -> object:
    """Return what serves an endpoint in its usual spelling, or None."""
    with suppress(Exception):
        return _follow(app, {"type": "http", "method": "POST", "path": endpoint, "root_path": "", "headers": []})[1]
    return None


def _endpoint_of(end: object) -> object:
    return end.endpoint if isinstance(end, Route) else end


def _follow(part: Any, scope: dict[str, Any], path: str = "") -> tuple[str, object]:
    """Follow a request through a part of the application, as each router would route it.

    Returns:
        The patterns of the routes on the way, joined, and what they lead to: a route, an application of unknown routes,
        or None.
    """
    routes = _routes(part)
    if routes is not None:
        route, child = _match(routes, scope)
        if route is None:
            default = part.__self__.default  # an included router has none: a request enters it for one of its routes
            return path, (None if getattr(default, "__self__", None) is part.__self__ else default)
        scope.update(child)
        path += getattr(route, "path", None) or ""
        # FastAPI serves a route that it made of the one that it includes.
        made = getattr(route, "starlette_route", None) or getattr(route, "original_route", route)
        return _follow(made, scope, path)
    inner = None if isinstance(part, Route) or not keeps_path(part) else _inner(part, scope)
    return (path, part) if inner is None else _follow(inner, scope, path)


def _routes(part: Any) -> Iterable[Any] | None:
    """Return the routes that a part tries in order, or None if it is neither a router's own method nor included."""
    if getattr(part, "__qualname__", None) in ROUTERS_OWN:
        routes: Iterable[Any] = part.__self__.routes
        return routes
    return part.effective_candidates() if is_included(part) else None


def _match(routes: Iterable[Any], scope: Scope) -> tuple[Any, dict[str, Any]]:
    """Return the route that a router takes for a request, or None, and what the route adds to the scope."""
    partial: tuple[Any, dict[str, Any]] = None, {}
    for route in routes:
        match, child = route.matches(scope)
        if match is Match.FULL:
            return route, dict(child)
        if match is Match.PARTIAL and partial[0] is None:
            partial = route, dict(child)
    return partial


def _inner(part: Any, scope: dict[str, Any]) -> Any:
    """Return what a part passes requests to, or None if that is unknown."""
    if isinstance(part, Starlette):
        if root_path := getattr(part, "root_path", ""):  # FastAPI's
            scope["root_path"] = root_path
        # Until Starlette has built the stack, it is known only if it has no middleware.
        return part.middleware_stack or (None if part.user_middleware else part.router)
    return getattr(part, "middleware_stack", None) or getattr(part, "app", None)


def keeps_path(part: Any) -> bool:
    """Return whether a part passes requests on with an unchanged path for sure."""
    kind = class_of(part)
    runs = [kind.handle if issubclass(kind, BaseRoute) else kind.__call__, getattr(kind, "dispatch", None)]
    given = attribute(part, "kwargs")
    runs += [attribute(part, "dispatch_func"), given.get("dispatch") if isinstance(given, dict) else None]
    modules = [getattr(one, "__module__", None) or "" for one in runs if one is not None]
    return all(module.partition(".")[0] in _KEEP_PATHS for module in modules)
