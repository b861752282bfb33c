"""Checks of where the middleware is placed, made before the first request.

Authentication must not be inside of it, since a session is bound to its user, nor a second middleware of ours for the
same endpoint. The application is walked along what its routes may serve at the MCP path, without running its code. The
number of workers is read from the settings of Uvicorn, Gunicorn or Hypercorn.

`Routing` follows a path that is not spelled as the endpoint through the application's own routes. A pattern serves more
than it shows: `^/mcp$` matches a path that ends in a line feed, and `FastAPI(root_path="/api")` serves `/api/mcp`, too.
A request that only the server sees would evade every policy.
"""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from itertools import islice
from types import CellType, FrameType, FunctionType, MemberDescriptorType, MethodType
from typing import Any, Final, Literal, NamedTuple, cast

from starlette.applications import Starlette
from starlette.routing import BaseRoute, Match, Mount, Route, Router
from starlette.types import Scope

from .._protocol.headers import SESSION_HEADER
from . import forms

MISPLACED: Final = (
    "MCPSessionMiddleware is outside of the application's authentication, where it cannot see who the caller is. Use "
    "add_sessions(app, ...) instead, which puts it inside; or pass principal=, a function that returns the caller for "
    "an ASGI scope"
)
TWICE: Final = (
    "there are two MCPSessionMiddleware in front of the MCP endpoint. Each would write its own session into answers, "
    "and changes that handlers make to their session would be lost. Remove one of them"
)
UNSERVED: Final = (
    "no route of the application serves path=%r, so MCPSessionMiddleware would see no request and require nothing. "
    "Pass the path of the MCP endpoint as path=, or path=None for every path (routes that take POST: %s)"
)
STATEFUL: Final = (
    "the wrapped server has transport sessions of its own, so legacy clients without session support get none of ours: "
    "give it stateless_http=True, or set transport=TransportSessions(bridge=True)"
)
LAST_EVENT_ID: Final = b"last-event-id"
_EMPTY: Final = CellType()  # a name that is not bound yet, or no longer
ROUTERS_OWN: Final = frozenset({"Router.app", "APIRouter.app"})  # methods that do no more than look at the routes
_INNER: Final = ("app", "router", "middleware_stack", "original_router", "endpoint")
_INNER_LISTS: Final = ("routes", "user_middleware")
_log: Final = logging.getLogger("mcp_sessions")

# In all of these, `app` is the wrapped application, and `endpoint` the MCP path without a trailing slash, or None for
# every path.


def authenticates(app: object, endpoint: str | None) -> bool:
    return any(_is_a(part, "AuthenticationMiddleware") for part in parts(app, endpoint))


def repeats(app: object, endpoint: str | None) -> bool:
    """Whether `app` contains another middleware of ours that certainly inspects the same requests."""
    inner = ((_path_of(part), path) for part, path in _walk(app, endpoint) if _is_a(part, "MCPSessionMiddleware"))
    # Behind a mount with a pattern for a path, `path` is None though the endpoint is not.
    return any(endpoint is None or (path is not None and own in {None, path}) for own, path in inner)


def unserved(app: object, endpoint: str | None) -> str | None:
    """Return why no request can reach the endpoint, with the remedy; None where one may, or where that is unknown."""
    found = list(parts(app, endpoint))
    if endpoint is None or not any(isinstance(part, Router) for part in found) or any(map(_may_answer, found)):
        return None
    return UNSERVED % (endpoint, ", ".join(islice(_posts(app), 5)) or "none")


def log_unserved(app: object, endpoint: str | None) -> None:
    """Log why no request can reach the endpoint. The server starts all the same: a route may yet be added."""
    if (reason := unserved(app, endpoint)) is not None:
        _log.error(reason)


def log_stateful(app: object, endpoint: str | None) -> None:
    if any(manager.stateless is False for manager in managers(reachable(app, endpoint))):
        _log.warning(STATEFUL)


def managers(parts: Iterable[object]) -> Iterator[Any]:
    """Yield what serves Streamable HTTP for the official SDK and for FastMCP, among what a request may reach."""
    for part in parts:
        manager = getattr(part, "session_manager", None) if _is_a(part, "StreamableHTTPASGIApp") else part
        if _is_a(manager, "StreamableHTTPSessionManager"):
            yield manager


def _is_a(part: object, name: str) -> bool:
    return any(base.__name__ == name for base in _class_of(part).__mro__)


def _class_of(part: object) -> type:
    noted = _attribute(part, "cls")  # what `add_middleware` wrote down, to be built later
    return noted if isinstance(noted, type) else type(part)


def _path_of(ours: object) -> str | None:
    noted = _attribute(ours, "kwargs")
    if not isinstance(noted, dict):
        return cast(str | None, _attribute(ours, "path"))
    usual = inspect.signature(_class_of(ours)).parameters["path"].default
    return cast(str | None, forms.PATH.check("path", noted.get("path", usual)))


def _may_answer(part: object) -> bool:
    """Whether a part may answer by itself: a route, a router's own default, or what has nothing to look into."""
    if isinstance(part, Router):
        return not part.routes or getattr(part.default, "__self__", None) is not part
    is_middleware = isinstance(_attribute(part, "cls"), type)  # it answers for what is behind it
    is_open = is_middleware or getattr(part, "__qualname__", None) in ROUTERS_OWN or any(True for _ in _inside(part))
    return isinstance(part, Route) or not is_open


def _posts(app: object) -> Iterator[str]:
    seen: set[int] = set()
    ahead = [(app, "")]
    for part, above in ahead:
        path = above + part.path if isinstance(part, (Route, Mount)) else above
        if isinstance(part, Route) and "POST" in (part.methods or {"POST"}):
            yield path
        if id(part) not in seen and not isinstance(part, Route):
            seen.add(id(part))
            ahead += [(inner, path) for inner in _inside(part)]


def parts(app: object, endpoint: str | None) -> Iterator[object]:
    """Yield everything that a request to the endpoint may pass through."""
    return (part for part, _ in _walk(app, endpoint))


def reachable(app: object, endpoint: str | None) -> Iterator[object]:
    """Yield these parts, and what those that are plain functions or methods refer to."""
    return (found for part in parts(app, endpoint) for found in (part, *_referenced(part)))


def _referenced(part: object) -> Iterator[object]:
    """Yield what a plain function refers to, or the object of a method."""
    if isinstance(part, MethodType):
        yield part.__self__
    if isinstance(part, FunctionType):
        yield from (cell.cell_contents for cell in part.__closure__ or () if cell != _EMPTY)
        yield from (part.__globals__[name] for name in part.__code__.co_names if name in part.__globals__)


def _walk(app: object, endpoint: str | None) -> Iterator[tuple[object, str | None]]:
    """Yield the parts, each with the endpoint as that part sees it."""
    seen: set[tuple[int, str | None]] = set()
    ahead: list[tuple[object, str | None]] = [(app, endpoint)]
    while ahead:
        part, path = ahead.pop()
        if (id(part), path) in seen or not _may_serve(part, path):
            continue
        seen.add((id(part), path))
        yield part, path
        ahead += [(inner, _below(part, path)) for inner in _inside(part)]


def _inside(part: object) -> Iterator[object]:
    for name in _INNER:
        if (inner := _attribute(part, name)) is not None:
            yield inner
    for name in _INNER_LISTS:
        listed = _attribute(part, name)
        yield from listed if isinstance(listed, (list, tuple)) else ()


def _attribute(part: object, name: str) -> Any:
    """Return an attribute without running a property's code."""
    value = inspect.getattr_static(part, name, None)
    return getattr(part, name, None) if isinstance(value, MemberDescriptorType) else value


def _may_serve(part: object, endpoint: str | None) -> bool:
    """Whether a request at the endpoint, or below it, may reach this part. In doubt, it may."""
    if endpoint is None or not isinstance(part, (Route, Mount)) or "{" in part.path:
        return True
    path = part.path.rstrip("/")
    return _is_within(path, endpoint) or (isinstance(part, Mount) and _is_within(endpoint, path))


def _below(part: object, endpoint: str | None) -> str | None:
    """Return the endpoint as the inside of a part sees it; None where that is unknown."""
    if endpoint is None or hasattr(part, "original_router"):  # an included router has a prefix of its own
        return None
    if not isinstance(part, Mount):
        return endpoint
    path = part.path.rstrip("/")
    return endpoint[len(path) :] if _is_within(endpoint, path) else None


def _is_within(path: str, other: str) -> bool:
    return path == other or path.startswith(other + "/")


# --- workers -------------------------------------------------------------------------------------

RANDOM_KEYS: Final = (
    "keys=None makes random keys in each of the {count} worker processes, and no worker would know the sessions of "
    'the others. Give all of them the same keys, as in keys="env:MCP_SESSIONS_KEYS"'
)
MEMORY_STATE: Final = (
    'store="memory:" holds the state of clients without session support in one of the {count} worker processes, and '
    'the others would refuse their sessions. Use a store that the workers share, as in store="sqlite:sessions.db" on '
    'one machine or store="redis://..." on many, or set transport="off"'
)
MEMORY_STORE: Final = (
    'store="memory:" records deleted sessions in one of the %d worker processes only; the others accept them until '
    "they expire. Use a store that all workers share"
)
FORGETS: Final = (
    'store="memory:" is lost at a restart: deleted sessions are then accepted again, sessions lose their data, and '
    'clients without session support lose their sessions. store="sqlite:sessions.db" survives restarts'
)


def fault(*, random_keys: bool, memory_store: bool, keeps_state: bool) -> str | None:
    """Return why several workers must not serve these options, with the remedy; None where they may.

    `keeps_state` says whether there are sessions whose state is in the store.
    """
    count = workers()
    if count > 1 and random_keys:
        return RANDOM_KEYS.format(count=count)
    if count > 1 and memory_store and keeps_state:
        return MEMORY_STATE.format(count=count)
    if count > 1 and memory_store:  # sessions work, only deleting one is not seen everywhere
        _log.warning(MEMORY_STORE, count)
    elif memory_store and not random_keys:
        _log.warning(FORGETS)
    return None


# Where a worker process has its server's settings: module and function, and the variable there.
_SETTINGS: Final[Mapping[tuple[object, str], str]] = {
    ("uvicorn._subprocess", "subprocess_started"): "config",
    ("gunicorn.workers.base", "init_process"): "self.cfg",
    ("hypercorn.asyncio.run", "asyncio_worker"): "config",
    ("hypercorn.asyncio.run", "uvloop_worker"): "config",
    ("hypercorn.trio.run", "trio_worker"): "config",
}


def workers() -> int:
    """Return how many worker processes there are, by the settings of the server below us on the stack."""
    frame: FrameType | None = sys._getframe()  # noqa: SLF001  # `inspect.stack` reads the source of every frame
    while frame is not None:
        if (where := _SETTINGS.get((frame.f_globals.get("__name__"), frame.f_code.co_name))) is not None:
            settings = frame.f_locals["self"].cfg if where == "self.cfg" else frame.f_locals[where]
            return 1 if getattr(settings, "should_reload", False) else cast(int, settings.workers)
        frame = frame.f_back
    return 1


# --- where a request is ---

Place = Literal["endpoint", "below", "elsewhere"]
"""At the endpoint every POST is MCP; below it, or on any path where none is configured, a JSON POST may be; elsewhere
nothing is."""

_CARRIED: Final = frozenset({SESSION_HEADER, LAST_EVENT_ID})
_KEEP_PATHS: Final = frozenset({"starlette", "fastapi", "fastmcp", "mcp", "mcp_sessions", "opentelemetry"})
"""Packages whose applications and middlewares route by the path that they were given, or pass it on as it came."""


class Routing:
    """What the wrapped application makes of a path that is not spelled as the endpoint.

    With `guards` a policy or the bridge depends on it, so that a path that may lead to the server counts.
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
        path, endpoint = way.path.rstrip("/"), self._endpoint
        is_same = _endpoint_of(way.end) is _endpoint_of(self._own)  # perhaps by another route
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
    modules = [getattr(one, "__module__", None) or "" for one in (runs, getattr(part, "dispatch_func", runs))]
    return all(module.partition(".")[0] in _KEEP_PATHS for module in modules)
