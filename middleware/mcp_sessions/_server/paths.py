"""Paths that are not spelled as the MCP endpoint, followed through the wrapped application's own routes.

A pattern serves more than it shows: `^/mcp$` matches a path that ends in a line feed, and `FastAPI(root_path="/api")`
serves `/api/mcp`, too. A request that only the server sees would evade every policy.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple

from starlette.applications import Starlette
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Scope

from .._protocol.headers import SESSION_HEADER
from .placement import ROUTERS_OWN
from .transport import LAST_EVENT_ID

Place = Literal["endpoint", "below", "elsewhere"]
"""At the endpoint every POST is MCP; below it, or on any path where none is configured, a JSON POST may be; elsewhere
nothing is."""

_CARRIED: Final = frozenset({SESSION_HEADER, LAST_EVENT_ID})
_KEEP_PATHS: Final = frozenset({"starlette", "fastapi", "fastmcp", "mcp", "mcp_sessions", "opentelemetry"})
"""Packages whose applications and middlewares route by the path that they were given, or pass it on as it came."""


class Routing:
    """What the wrapped application makes of a path that is not spelled as the endpoint.

    Args:
        app: The wrapped application.
        endpoint: The MCP path without a trailing slash.
        guards: Whether a policy or the bridge depends on it, so that a path that may lead to the server counts.
    """

    def __init__(self, app: object, endpoint: str, *, guards: bool) -> None:
        self._app: Final = app
        self._endpoint: Final = endpoint
        self._in_doubt: Final[Place] = "below" if guards else "elsewhere"

    def place(self, scope: Scope) -> Place:
        if scope["method"] != "POST" and _CARRIED.isdisjoint(name for name, _ in scope["headers"]):
            return "elsewhere"
        try:
            way = _follow(self._app, {**scope})
        except Exception:  # noqa: BLE001  # a route's own, which the application will meet as well
            return self._in_doubt
        if way.end is None:
            return "elsewhere"
        path, endpoint, is_same = way.path.rstrip("/"), self._endpoint, way.serves(self._own)
        if path.startswith(endpoint + "/"):
            return "below"
        if isinstance(way.end, Route):
            is_endpoint = path == endpoint or is_same
            return ("below" if "{" in path else "endpoint") if is_endpoint else "elsewhere"
        if path == endpoint:
            return "below"
        # An application that cannot be looked into, mounted above the endpoint or in no router at all.
        return self._in_doubt if is_same or endpoint.startswith(path + "/") else "elsewhere"

    @cached_property
    def _own(self) -> object:
        """What serves the endpoint in its usual spelling."""
        usual = {"type": "http", "method": "POST", "path": self._endpoint, "root_path": "", "headers": []}
        with suppress(Exception):
            return _follow(self._app, usual).end
        return None


class _Way(NamedTuple):
    """The routes' patterns, joined, and what they lead to: a route, an application of unknown routes, or nothing."""

    path: str
    end: object

    def serves(self, other: object) -> bool:
        """Whether it leads to the same server as another end, perhaps by another route."""
        return _endpoint_of(self.end) is _endpoint_of(other)


def _endpoint_of(end: object) -> object:
    return end.endpoint if isinstance(end, Route) else end


def _follow(part: Any, scope: dict[str, Any], path: str = "") -> _Way:
    """Follow a request through a part of the application, as each router on its way would route it."""
    routes = _routes(part)
    if routes is not None:
        route, child = _match(routes, scope)
        if route is None:
            default = part.__self__.default  # an included router is entered only for a route of its own
            return _Way(path, None if getattr(default, "__self__", None) is part.__self__ else default)
        scope.update(child)
        path += getattr(route, "path", None) or ""
        # What FastAPI makes of a route that it includes.
        made = getattr(route, "starlette_route", None) or getattr(route, "original_route", route)
        return _follow(made, scope, path)
    inner = None if isinstance(part, Route) or not _keeps_path(part) else _inner(part, scope)
    return _Way(path, part) if inner is None else _follow(inner, scope, path)


def _routes(part: Any) -> Iterable[Any] | None:
    """Return the routes that a part tries in order, or None where it is not a router's own method."""
    if getattr(part, "__qualname__", None) in ROUTERS_OWN:
        routes: Iterable[Any] = part.__self__.routes
        return routes
    return part.effective_candidates() if hasattr(part, "original_router") else None


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


def _keeps_path(part: Any) -> bool:
    """Whether a part is certain to pass requests on with the path that they came with."""
    runs = type(part).handle if isinstance(part, BaseRoute) else type(part).__call__
    return all(_package(function) in _KEEP_PATHS for function in (runs, getattr(part, "dispatch_func", runs)))


def _package(function: object) -> str:
    return (getattr(function, "__module__", None) or "").partition(".")[0]
