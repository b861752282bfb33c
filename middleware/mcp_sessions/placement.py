"""Where the middleware stands: whether it sees who callers are, and the MCP path, and whether it stands there twice.

Were authentication inside, no session could be bound to its user: the principal is known only further in. Of two
middlewares in front of one endpoint the outer one would overwrite what the inner one writes back. The application is
walked from the middleware down, along what its routes may serve at the MCP path; authentication is told by the name of
Starlette's class, which the official SDK and FastMCP use. No code of the application runs meanwhile, and objects of any
other kind are passed over.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator
from itertools import islice
from types import MemberDescriptorType
from typing import Any, Final, cast

from starlette.routing import Mount, Route, Router
from starlette.types import Receive, Send

from . import checks

MISPLACED: Final = (
    "MCPSessionMiddleware stands outside of the application's authentication, where it cannot see whose a session "
    "is. Use add_sessions(app, ...) instead, which puts it inside; or pass principal=, a function of the ASGI scope "
    "that tells who the caller is"
)
TWICE: Final = (
    "MCPSessionMiddleware stands twice in front of the MCP endpoint. Each would write its own session into answers, "
    "and what a handler keeps in its session would be lost. Take one of the two away"
)
UNSERVED: Final = (
    "no route of the application serves path=%r, so MCPSessionMiddleware would see no request and require nothing. "
    "Pass the path of the MCP endpoint as path=, or path=None for every path (routes that take POST: %s)"
)
_ROUTERS_OWN: Final = frozenset({"Router.app", "APIRouter.app"})  # methods that do no more than look at the routes
_AUTHENTICATION: Final = "AuthenticationMiddleware"
_OURS: Final = "MCPSessionMiddleware"
_log: Final = logging.getLogger("mcp_sessions")
_INNER: Final = ("app", "router", "middleware_stack", "original_router", "endpoint")
_INNER_LISTS: Final = ("routes", "user_middleware")


def authenticates(app: object, endpoint: str | None) -> bool:
    """Whether authentication takes place inside of `app`, on the way to the endpoint.

    Args:
        app: The wrapped application.
        endpoint: The MCP path without a trailing slash, or None for every path.
    """
    return any(map(_is_authentication, parts(app, endpoint)))


def repeats(app: object, endpoint: str | None) -> bool:
    """Whether another middleware of ours stands inside of `app` and surely looks at the same requests.

    Args:
        app: The wrapped application.
        endpoint: The MCP path without a trailing slash, or None for every path.
    """
    inner = ((_path_of(part), path) for part, path in _walk(app, endpoint) if _is_a(part, _OURS))
    # Behind a mount whose path cannot be told, `path` is None though the endpoint is not.
    return any(endpoint is None or (path is not None and own in {None, path}) for own, path in inner)


def unserved(app: object, endpoint: str | None) -> str | None:
    """Why no request can come to the endpoint, with the remedy; None where one may, or where it cannot be told.

    Args:
        app: The wrapped application.
        endpoint: The MCP path without a trailing slash, or None for every path.
    """
    found = list(parts(app, endpoint))
    is_routed = any(isinstance(part, Router) for part in found)
    if endpoint is None or not is_routed or any(map(_may_answer, found)):
        return None
    return UNSERVED % (endpoint, ", ".join(islice(_posts(app), 5)) or "none")


def log_unserved(app: object, endpoint: str | None) -> None:
    """Log why no request can come to the endpoint. It is no reason not to start: a route may yet be added."""
    if (reason := unserved(app, endpoint)) is not None:
        _log.error(reason)


async def refuse_start(receive: Receive, send: Send, reason: str) -> None:
    """Answer the server's start-up event so that it stops and prints the reason."""
    await receive()
    await send({"type": "lifespan.startup.failed", "message": reason})


def _is_authentication(part: object) -> bool:
    return _is_a(part, _AUTHENTICATION)


def _is_a(part: object, name: str) -> bool:
    return any(base.__name__ == name for base in _class_of(part).__mro__)


def _class_of(part: object) -> type:
    noted = _attribute(part, "cls")  # what `add_middleware` wrote down and nobody has built yet
    return noted if isinstance(noted, type) else type(part)


def _path_of(ours: object) -> str | None:
    """The MCP path that a middleware of ours looks at, without a trailing slash; None for every path."""
    noted = _attribute(ours, "kwargs")
    if not isinstance(noted, dict):
        return cast(str | None, _attribute(ours, "path"))
    usual = inspect.signature(_class_of(ours)).parameters["path"].default
    return checks.path(noted.get("path", usual))


def _may_answer(part: object) -> bool:
    """Whether a part may answer by itself: a route, a router's own default, or what has nothing to look into."""
    if isinstance(part, Router):
        return not part.routes or getattr(part.default, "__self__", None) is not part
    is_middleware = isinstance(_attribute(part, "cls"), type)  # it answers for what is behind it
    is_open = is_middleware or getattr(part, "__qualname__", None) in _ROUTERS_OWN or any(True for _ in _inside(part))
    return isinstance(part, Route) or not is_open


def _posts(app: object) -> Iterator[str]:
    """The full paths of the routes that take POST; a router that is mounted twice is looked into once."""
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
    """Everything that a request to the endpoint may pass through.

    Args:
        app: The wrapped application.
        endpoint: The MCP path without a trailing slash, or None for every path.
    """
    return (part for part, _ in _walk(app, endpoint))


def _walk(app: object, endpoint: str | None) -> Iterator[tuple[object, str | None]]:
    """The same, each with the endpoint as that part sees it."""
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
    """An attribute that is simply there: a property's code may do anything, so it is not run."""
    value = inspect.getattr_static(part, name, None)
    return getattr(part, name, None) if isinstance(value, MemberDescriptorType) else value


# --- what a route may serve ----------------------------------------------------------------------


def _may_serve(part: object, endpoint: str | None) -> bool:
    """Whether a request at the endpoint, or below it, may come to this part. In doubt, it may."""
    if endpoint is None or not isinstance(part, (Route, Mount)) or "{" in part.path:
        return True
    path = part.path.rstrip("/")
    return _is_within(path, endpoint) or (isinstance(part, Mount) and _is_within(endpoint, path))


def _below(part: object, endpoint: str | None) -> str | None:
    """The endpoint as the inside of a part sees it; None where that cannot be told."""
    if endpoint is None or hasattr(part, "original_router"):  # an included router has a prefix of its own
        return None
    if not isinstance(part, Mount):
        return endpoint
    path = part.path.rstrip("/")
    return endpoint[len(path) :] if _is_within(endpoint, path) else None


def _is_within(path: str, other: str) -> bool:
    return path == other or path.startswith(other + "/")
