"""What is checked and logged before the first request: the place of the middleware, and what its workers share.

Authentication must not be inside of the middleware, since a session is bound to its user, nor may a second
`MCPSessionMiddleware` for the same endpoint be.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final, cast

from starlette.routing import Mount, Route, Router

from .._dialects.base import Dialects
from ..stores._base import StoreScope
from . import option_types
from .route_tree import (
    ROUTERS_OWN,
    Node,
    attribute,
    class_of,
    inside,
    is_a,
    managers,
    reachable,
    references,
    takes_post,
    walk,
)
from .routing import keeps_path
from .runtime import Runtime
from .workers import workers

MISPLACED: Final = (
    "MCPSessionMiddleware is outside of the application's authentication, where it cannot see who the caller is. Use "
    "add_sessions(app, ...) instead, which puts it inside; or pass principal=, a function that returns the caller for "
    "an ASGI scope"
)
DUPLICATE_MIDDLEWARE: Final = (
    "there are two MCPSessionMiddleware in front of the MCP endpoint. Each would write its own session into answers, "
    "and changes that handlers make to their session would be lost. Remove one of them"
)
UNSERVED: Final = (
    "no route of the application serves path=%r, so MCPSessionMiddleware would see no request and require nothing. "
    "Pass the path of the MCP endpoint as path=, or path=None for every path (routes that take POST: %s)"
)
OLDER_SSE: Final = (
    "the application serves the older SSE transport, whose clients have no sessions: connect them to the Streamable "
    "HTTP endpoint, which streamable_http_app() serves, or http_app() with FastMCP"
)
UNSTARTED: Final = (
    "no lifespan has reached this middleware, so the MCP server behind it may not have started, and would answer HTTP "
    "500. A server starts the outermost application alone: pass on the lifespan of what is mounted in it, as in "
    "FastAPI(lifespan=lifespan_of(mcp_app)), with lifespan_of from mcp_sessions.integrations"
)
_log: Final = logging.getLogger("mcp_sessions")

# In all of these, `app` is the wrapped application, and `endpoint` the MCP path without a trailing slash, or None for
# every path.


def authenticates(app: object, endpoint: str | None) -> bool:
    """Return whether the application authenticates its callers inside."""
    return any(is_a(node.part, "AuthenticationMiddleware") for node in walk(app, endpoint))


def repeats(app: object, endpoint: str | None) -> bool:
    """Return whether the application contains another `MCPSessionMiddleware` that inspects the same requests."""
    inner = [node for node in walk(app, endpoint) if is_a(node.part, "MCPSessionMiddleware")]
    if endpoint is None:
        return bool(inner)
    # Behind a mount with a pattern for a path, the endpoint is not known.
    return any(node.endpoint is not None and _path_of(node.part) in {None, node.endpoint} for node in inner)


def _path_of(middleware: object) -> str | None:
    """Return the `path=` of a middleware, which may have to be built yet."""
    options = attribute(middleware, "kwargs")
    if not isinstance(options, dict):
        return cast(str | None, attribute(middleware, "path"))
    default = inspect.signature(class_of(middleware)).parameters["path"].default
    return cast(str | None, option_types.PATH.check("path", options.get("path", default)))


def unserved(app: object, endpoint: str | None) -> str | None:
    """Return why no MCP request can reach the endpoint; None if one may, or if the application shows no routes."""
    found = [] if endpoint is None else list(walk(app, endpoint, into_routes=False))
    if not any(isinstance(node.part, Router) for node in found):
        return None
    answers = any(_may_answer(node.part, node.endpoint) for node in found)
    if answers and (any(map(_is_exact, found)) or not _serves_elsewhere(app, endpoint)):
        return None
    posts = (node.pattern for node in walk(app) if isinstance(node.part, Route) and takes_post(node.part))
    text = UNSERVED % (endpoint, ", ".join(islice(posts, 5)) or "none")
    return f"{text}; {OLDER_SSE}" if serves_older_sse(app) else text


def serves_older_sse(app: object) -> bool:
    """Return whether the application serves the transport of protocol 2024-11-05, at other paths."""
    return any(is_a(getattr(node.part, "__self__", None), "SseServerTransport") for node in walk(app))


def is_certain(app: object, endpoint: str | None) -> bool:
    """Return whether the MCP server is at the endpoint for sure.

    It is if a known server answers there, or if a route or mount has exactly this path while no known server is
    elsewhere. Anything else may be a folder of files, with the server at another path.
    """
    found = list(walk(app, endpoint, into_routes=False))
    if any(any(_servers_at(node)) for node in found):
        return True
    return any(map(_is_exact, found)) and not _serves_elsewhere(app, endpoint)


def _servers_at(node: Node) -> Iterator[Any]:
    """Yield the known MCP servers that certainly answer at the endpoint."""
    part = node.part
    if node.endpoint is None:
        return
    if not isinstance(part, Route):
        yield from managers((part, *references(part)))
    elif takes_post(part) and _matches(part, node.endpoint):
        yield from managers(reachable(part.endpoint, node.endpoint))


def _is_exact(node: Node) -> bool:
    """Return whether a part is a route or a mount for exactly the endpoint."""
    return isinstance(node.part, (Route, Mount)) and node.part.path.rstrip("/") == node.endpoint


def _serves_elsewhere(app: object, endpoint: str | None) -> bool:
    """Return whether there are known MCP servers, but not at the endpoint."""
    return any(managers(reachable(app, None))) and not any(managers(reachable(app, endpoint)))


def _may_answer(part: Any, path: str | None) -> bool:
    """Return whether a part may answer a request, in place of passing it on."""
    if isinstance(part, Route):
        return takes_post(part) and (path is None or _may_match(part, path))
    if is_a(part, "StaticFiles"):  # it has GET and HEAD only
        return False
    if getattr(part, "__qualname__", None) in ROUTERS_OWN:
        return False
    if not keeps_path(part):
        return True
    if isinstance(part, Router):  # its default may be the application's
        return not part.routes or getattr(part.default, "__self__", None) is not part
    return not (isinstance(attribute(part, "cls"), type) or any(True for _ in inside(part)))


def _may_match(route: Route, path: str) -> bool:
    """Return whether a route may serve a path, or one below if the path of the route is a pattern."""
    return "{" not in route.path or route.path.startswith(path + "/") or _matches(route, path)


def _matches(route: Route, path: str) -> bool:
    return any(route.path_regex.match(path + end) for end in ("", "/"))


def log_unstarted(app: object, endpoint: str | None) -> None:
    """Warn that nothing has started a Starlette application, or a server of the SDK or FastMCP."""
    found = list(reachable(app, endpoint))
    if any(isinstance(part, Router) for part in found) or any(managers(found)):
        _log.warning(UNSTARTED)


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
MEMORY_IS_VOLATILE: Final = (
    'store="memory:" is lost at a restart: deleted sessions are then accepted again, sessions lose their data, and '
    'clients without session support lose their sessions. store="sqlite:sessions.db" survives restarts'
)


def workers_error(runtime: Runtime, dialects: Dialects, *, random_keys: bool) -> str | None:
    """Return why several workers must not serve these options, with the remedy, or None if they may."""
    count = workers()
    if count > 1 and random_keys:
        return RANDOM_KEYS.format(count=count)
    keeps_state = any(one.is_on and not one.carries_state for one in dialects.all)
    if count > 1 and runtime.store.scope is StoreScope.PROCESS and keeps_state:
        return MEMORY_STATE.format(count=count)
    return None


def log_memory(runtime: Runtime, *, random_keys: bool) -> None:
    """Warn of what other workers do not see or a restart forgets, unless the keys are lost as well."""
    if runtime.store.scope is StoreScope.PROCESS and not random_keys:
        if (count := workers()) > 1:  # sessions work, but other workers do not see the end of one
            _log.warning(MEMORY_STORE, count)
        else:
            _log.warning(MEMORY_IS_VOLATILE)


def log_start(app: object, endpoint: str | None, runtime: Runtime, dialects: Dialects) -> None:
    """Log how clients get sessions, and what keeps some from it."""
    signing, *others = [key.kid for key in runtime.ring(runtime.clock())]
    _log.info(
        "sessions at %s for audience %s: clients get them %s; kept in %s (%s), %s; key %s signs%s",
        "every path" if endpoint is None else endpoint,
        ascii(runtime.audience),
        ", ".join(dict.fromkeys(f"by {one.name}" for one in dialects.all if one.is_on)),
        getattr(runtime.store, "location", type(runtime.store).__name__),
        runtime.store.scope.value,
        "tracked" if runtime.tracked else "not tracked",
        signing,
        "".join(f", {kid} verifies" for kid in others),
    )
    if serves_older_sse(app):
        _log.warning(OLDER_SSE)
    servers = list(managers(reachable(app, endpoint)))
    runtime.is_stateless |= bool(servers) and all(server.stateless for server in servers)
    for dialect in dialects.all:
        if (warning := dialect.startup_warning(servers)) is not None:
            _log.warning(warning)
