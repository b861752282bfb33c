"""What an application consists of: one walk over its middleware, routers, mounts and routes, without running its code.

A pattern serves more than it shows: `^/mcp$` matches a path that ends in a line feed, and `FastAPI(root_path="/api")`
serves `/api/mcp`, too. A request that only the server sees would evade every policy.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import CellType, FunctionType, MemberDescriptorType, MethodType
from typing import Any, Final

from starlette.applications import Starlette
from starlette.routing import Mount, Route, WebSocketRoute

_EMPTY: Final = CellType()  # of a name that is not bound
ROUTERS_OWN: Final = frozenset({"Router.app", "APIRouter.app"})  # methods that only look at the routes
_INNER: Final = ("app", "router", "middleware_stack", "endpoint")
_INNER_LISTS: Final = ("routes", "user_middleware")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Node:
    """Something that a request may pass through.

    Args:
        part: A middleware, an application, a router, a route, or what an endpoint is.
        endpoint: The path of the MCP endpoint as this part sees it, or None if that is unknown.
        pattern: The patterns of the routes and mounts that lead to it, and of the route itself, joined.
        holder: What holds it, or None for the outermost part.
        original: The object that the application was given, if FastAPI serves what it makes of that.
    """

    part: Any
    endpoint: str | None
    pattern: str = ""
    holder: Node | None = None
    original: Any = None

    def above(self) -> Iterator[Any]:
        """Yield the parts that lead here, up to the outermost."""
        node = self.holder
        while node is not None:
            yield node.part
            node = node.holder


def walk(app: object, endpoint: str | None = None, *, into_routes: bool = True) -> Iterator[Node]:
    """Yield everything that a request to the endpoint may pass through, once for each way that leads there.

    Args:
        app: The application.
        endpoint: The path of the MCP endpoint without a trailing slash, or None for every path.
        into_routes: Whether to look into the endpoints of routes.
    """
    seen: dict[tuple[int, int, str | None, str], object] = {}  # with the parts, so that no id is used again
    ahead = [Node(app, endpoint)]
    while ahead:
        node = ahead.pop()
        part, holder = node.part, node.holder
        key = (id(holder and holder.part), id(part), node.endpoint, node.pattern)
        if key in seen or not _may_serve(part, node.endpoint) or any(one is part for one in node.above()):
            continue
        seen[key] = part
        yield node
        if into_routes or not isinstance(part, Route):
            below = _below(part, node.endpoint)
            inner = [Node(one, below, node.pattern + _pattern(one), node, original) for one, original in inside(part)]
            ahead += reversed(inner)


def _pattern(part: object) -> str:
    return part.path if isinstance(part, (Route, Mount)) else ""


def reachable(app: object, endpoint: str | None) -> Iterator[object]:
    """Yield each of these parts once, and what those that are plain functions or methods refer to."""
    for part in {id(node.part): node.part for node in walk(app, endpoint)}.values():
        yield part
        yield from references(part)


def references(part: object) -> Iterator[object]:
    """Yield what a plain function or method refers to."""
    if isinstance(part, MethodType):
        yield part.__self__
    if isinstance(part, FunctionType):
        yield from (cell.cell_contents for cell in part.__closure__ or () if cell != _EMPTY)
        yield from (part.__globals__[name] for name in part.__code__.co_names if name in part.__globals__)


def inside(part: object) -> Iterator[tuple[object, object]]:
    """Yield what a part holds, each with the object that the application was given for it."""
    if is_included(part):
        yield from _included(part)
        return
    for name in _INNER:
        if (inner := attribute(part, name)) is not None:
            yield inner, inner
    for name in _INNER_LISTS:
        listed = attribute(part, name)
        yield from zip(listed, listed, strict=True) if isinstance(listed, (list, tuple)) else ()


def is_included(part: object) -> bool:
    """Return whether a part is what FastAPI makes of a router that it includes."""
    return hasattr(type(part), "effective_candidates")


def _included(part: Any) -> Iterator[tuple[object, object]]:
    """Yield the routes of an included router, with the paths that they have where it is included."""
    for one in part.effective_candidates():
        route = getattr(one, "original_route", one)
        made = getattr(one, "starlette_route", None)
        if made is None and isinstance(route, Route):
            made = Route(one.path, route.endpoint, methods=list(route.methods or ()))
        yield made or one, route


def attribute(part: object, name: str) -> Any:
    """Return an attribute without running a property's code."""
    value = inspect.getattr_static(part, name, None)
    return getattr(part, name, None) if isinstance(value, MemberDescriptorType) else value


def _may_serve(part: object, endpoint: str | None) -> bool:
    """Return whether a request at the endpoint or below it may reach this part. If that is unknown, it may."""
    if isinstance(part, WebSocketRoute):
        return False
    if endpoint is None or not isinstance(part, (Route, Mount)) or "{" in part.path:
        return True
    path = part.path.rstrip("/")
    return _is_within(path, endpoint) or (isinstance(part, Mount) and _is_within(endpoint, path))


def _below(part: object, endpoint: str | None) -> str | None:
    """Return the endpoint as the inside of a part sees it; None if that is unknown."""
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


def takes_post(route: Route) -> bool:
    """Return whether a route takes POST."""
    return "POST" in (route.methods or {"POST"})


def is_a(part: object, name: str) -> bool:
    """Return whether a part is of a class of this name, which need not be installed."""
    return any(base.__name__ == name for base in class_of(part).__mro__)


def class_of(part: object) -> type:
    """Return the class of a part, or the class that it is to be built from."""
    noted = attribute(part, "cls")  # of Starlette's `Middleware`
    return noted if isinstance(noted, type) else type(part)


def managers(found: Iterable[object]) -> Iterator[Any]:
    """Yield what serves Streamable HTTP for the official SDK and for FastMCP, among the parts of an application."""
    for part in found:
        manager = getattr(part, "session_manager", None) if is_a(part, "StreamableHTTPASGIApp") else part
        if is_a(manager, "StreamableHTTPSessionManager"):
            yield manager
