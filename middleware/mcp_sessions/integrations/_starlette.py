"""`add_sessions`: the middleware placed inside of an application's authentication, where the scope names the caller.

It goes in front of the innermost MCP app of a Starlette-like application. Endpoints of the official SDK and of FastMCP
are known by their class names, so neither has to be installed. A server starts the outermost application alone, and a
mounted one that was never started answers nothing: `lifespan_of` joins several lifespans (ASGI, Lifespan Protocol).
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from starlette.applications import Starlette
from starlette.routing import BaseRoute, Host, Mount, Route

from .._dialects import Options
from .._errors import ConfigurationError, Refusal
from .._server.environment import takes_options
from .._server.middleware import MCPSessionMiddleware
from .._server.route_tree import Node, attribute, class_of, is_a, is_included, takes_post, walk
from .._server.startup_checks import MISPLACED
from .fastapi import answer_refusal

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .._affinity.affinity import WorkerAffinity

App = TypeVar("App")


@takes_options(path=None)
def add_sessions(app: App, **options: Unpack[Options]) -> App:
    """Add sessions to the MCP endpoint of an application, inside of its authentication.

    Errors that an endpoint raises, such as that of `require_session()`, are answered as JSON-RPC errors.

    The store is opened and closed, and expired sessions are swept, in the lifespan of `app`. If `app` is mounted in
    another application, pass its lifespan on after this call, as in
    `FastAPI(lifespan=app.router.lifespan_context)`; otherwise the first session opens the store, which is never closed.

    Args:
        app: The application that `streamable_http_app()` of the official SDK or `http_app()` of FastMCP returns, or a
            Starlette or FastAPI application in which one of these is mounted. It is changed in place.
        options: See `Options`. Here `path` is the full path of the MCP endpoint, as in `"/api/mcp"`. It is needed if
            the endpoint is your own function, or if there are several.

    Returns:
        The same application.

    Raises:
        ConfigurationError: There is no endpoint, there are several, it already has sessions, or an option is wrong;
            the message names the remedy.
    """
    path = options.get("path")
    options["path"] = None  # what passes here is at the endpoint
    routed = _routed(app)
    if routed is None:
        raise ConfigurationError(
            f"add_sessions() looks for a route and {type(app).__name__} has none; "
            "wrap the application instead: MCPSessionMiddleware(app, ...)"
        )
    endpoints = _known(app) if path is None else _at(app, path)
    if any(endpoint.has_sessions for endpoint in endpoints):
        raise ConfigurationError(f"{endpoints[0].path} has sessions already; add them once")
    made = _place(endpoints, options)
    _join(routed, made)
    if made.affinity is not None:
        _enter_at(routed, made.affinity)
    if isinstance(routed, Starlette):
        routed.exception_handlers.setdefault(Refusal, answer_refusal)
    return app


def _enter_at(app: Any, affinity: WorkerAffinity) -> None:
    """Let requests leave for other workers, and enter from them, outside of all middleware of an application."""
    from .._affinity.affinity import Entrance

    affinity.entrance = app
    build = getattr(app, "build_middleware_stack", None)
    if build is not None and app.middleware_stack is None:
        app.build_middleware_stack = lambda: Entrance(build(), affinity)
    else:
        app.middleware_stack = Entrance(app.middleware_stack, affinity)


def _known(app: object) -> list[_Endpoint]:
    """Return the endpoints of the one known MCP server."""
    found = [endpoint for endpoint in _endpoints(app) if endpoint.serves_mcp]
    if not found:
        raise ConfigurationError(
            "add_sessions() found no endpoint of the official SDK or FastMCP; name its route with path=, "
            "as in path='/mcp', or wrap the application: MCPSessionMiddleware(app, ...)"
        )
    if len({id(endpoint.owner) for endpoint in found}) > 1:
        paths = ", ".join(sorted({endpoint.path for endpoint in found}))
        raise ConfigurationError(f"add_sessions() found several MCP endpoints ({paths}); say which with path=")
    return found


def _at(app: object, path: str) -> list[_Endpoint]:
    """Return the endpoints of the one router that has routes at a path: GET and POST may be two of them."""
    if not path.startswith("/"):
        raise ConfigurationError(f"path={path!r} must begin with '/', as in path='/mcp'")
    everywhere = list(_endpoints(app))
    here = [endpoint for endpoint in everywhere if endpoint.path == (path.rstrip("/") or "/")]
    found = [endpoint for endpoint in here if not endpoint.is_subtree] or here[:1]
    if not any(endpoint.posts for endpoint in found):
        others = ", ".join(sorted({endpoint.path for endpoint in everywhere if endpoint.posts})) or "none"
        raise ConfigurationError(
            f"no route takes POST at path={path!r} (those that do: {others}); "
            "correct path=, or wrap the application: MCPSessionMiddleware(app, ...)"
        )
    if len({id(endpoint.router) for endpoint in found}) > 1:
        raise ConfigurationError(
            f"several routers serve path={path!r}; call add_sessions() with the sub-application that is meant"
        )
    return found


class _AtEndpoint(MCPSessionMiddleware):
    """The middleware inside of a route: whatever comes here came for the endpoint."""

    _is_at_endpoint = True


def _place(endpoints: list[_Endpoint], options: Options) -> MCPSessionMiddleware:
    """Put the middleware in front of the endpoints, and return it."""
    first = endpoints[0]
    middleware = MCPSessionMiddleware if first.is_subtree else _AtEndpoint
    made = middleware(first.app, **options)
    if made.configuration_error == MISPLACED:
        raise ConfigurationError(
            f"the application at {first.path} authenticates its callers inside; give path= the full path of the "
            "MCP route in it, or pass principal=, a function of the ASGI scope that returns the caller"
        )
    for endpoint in {(id(one.holder), one.attribute): one for one in endpoints}.values():
        placed = copy.copy(made)  # the routes of one endpoint share their keys and their store
        placed.app = endpoint.app
        setattr(endpoint.holder, endpoint.attribute, placed)
        if changed := getattr(endpoint.router, "_mark_routes_changed", None):
            changed()  # FastAPI keeps what it made of an included router
    return made


_SERVES_MCP: Final = frozenset({"StreamableHTTPASGIApp", "StreamableHTTPSessionManager"})


@dataclass(frozen=True, slots=True)
class _Endpoint:
    """An ASGI application at the end of a route or mount, and the attribute that holds it."""

    node: Node  # the route or mount
    holder: object  # that, or the middleware in front of the application
    attribute: str
    app: Any
    has_sessions: bool  # whether the middleware stands in front of it already
    is_subtree: bool = False  # whether it is a mounted application that has routes

    @property
    def path(self) -> str:
        """The full path."""
        return self.node.pattern.rstrip("/") or "/"

    @property
    def posts(self) -> bool:
        """Whether the route takes POST."""
        return not isinstance(self.node.part, Route) or takes_post(self.node.part)

    @property
    def router(self) -> Any:
        """The router to which the route belongs."""
        router = next(self.node.above())
        return getattr(router, "original_router", router)

    @property
    def owner(self) -> object:
        """The application that serves, or the object whose method it is."""
        return getattr(self.app, "__self__", self.app)

    @property
    def serves_mcp(self) -> bool:
        """Whether the official SDK or FastMCP serves here."""
        things = (self.owner, getattr(self.owner, "session_manager", None))
        return not self.is_subtree and any(is_a(thing, name) for thing in things for name in _SERVES_MCP)


def _endpoints(app: object) -> Iterator[_Endpoint]:
    """Yield what stands at the end of each route and mount, behind the middleware in front of it."""
    for node in walk(app):
        if not isinstance(node.part, (Route, Mount, Host)) or node.holder is None:
            continue
        held = _held(node.original, is_included=is_included(node.holder.part))
        chain = list(_chain(*held))
        has_sessions = any(map(_has_sessions, [*node.above(), *(app for _, _, app in chain)]))
        if _routes(chain[-1][-1]) is None:
            yield _Endpoint(node, *chain[-1], has_sessions)
        elif isinstance(node.part, Mount):
            yield _Endpoint(node, *held, has_sessions, is_subtree=True)


def _held(route: Any, *, is_included: bool) -> tuple[object, str, Any]:
    """Return what holds the application at the end of a route, under which attribute, and the application."""
    if hasattr(route, "get_route_handler"):
        # A FastAPI route: what it serves is made again for each inclusion, and only `handle` is in front of all.
        return route, "handle", route.handle
    if is_included and isinstance(route, Route):  # FastAPI makes a new route of the endpoint
        return route, "endpoint", route.app if inspect.isroutine(route.endpoint) else route.endpoint
    return route, "app", route.app


def _chain(holder: object, attribute: str, app: Any) -> Iterator[tuple[object, str, Any]]:
    """Yield each application in front of the innermost one, and that, with what holds it."""
    seen = set[int]()
    while True:
        yield holder, attribute, app
        seen.add(id(app))
        inner = getattr(app, "app", None)
        if _routes(app) is not None or not callable(inner) or id(inner) in seen:
            return
        holder, attribute, app = app, "app", inner


def _routes(app: object) -> list[BaseRoute] | None:
    routes = getattr(app, "routes", None)
    return routes if isinstance(routes, list) else None


def _routed(app: Any) -> Any | None:
    """Return the application with routes, behind any middleware, or None."""
    return next((one for _, _, one in _chain(None, "app", app) if _routes(one) is not None), None)


def _has_sessions(app: object) -> bool:
    """Return whether an application is the middleware, or has it among its middleware."""
    entries = attribute(app, "user_middleware") or ()
    return any(issubclass(class_of(one), MCPSessionMiddleware) for one in (app, *entries))


# --- lifespans ---

Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]
"""What Starlette and FastAPI take as `lifespan=`."""


def lifespan_of(*parts: Any) -> Lifespan:
    """Combine the lifespans of several applications, or your own, into one.

        app = FastAPI(lifespan=lifespan_of(database, mcp_app))

    Args:
        parts: Applications (`streamable_http_app()` of the official SDK, `http_app()` of FastMCP, any Starlette or
            FastAPI application, one that `MCPSessionMiddleware` wraps) and functions as `lifespan=` takes them.
            They start in this order and stop in reverse. Mappings that they yield are merged.

    Raises:
        ConfigurationError: One of the parts has no lifespan.
    """
    for part in parts:
        if not callable(part):
            raise ConfigurationError(f"lifespan_of() takes applications and lifespan functions, not {part!r}")

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[dict[str, Any]]:
        merged: dict[str, Any] = {}
        async with AsyncExitStack() as stack:
            for part in parts:
                state = await stack.enter_async_context(_lifespan_of(part, app))
                merged |= state if isinstance(state, Mapping) else {}
            yield merged

    return lifespan


def _lifespan_of(part: Any, app: Any) -> AbstractAsyncContextManager[Any]:
    if isinstance(part, MCPSessionMiddleware):
        if part.configuration_error is not None:
            raise ConfigurationError(part.configuration_error)
        return part.services.around(lambda inner: _lifespan_of(part.app, inner), part.app)
    router = getattr(part, "router", None)
    entered: AbstractAsyncContextManager[Any] = part(app) if router is None else router.lifespan_context(part)
    return entered


def _join(app: Any, middleware: MCPSessionMiddleware) -> None:
    """Start and stop a middleware at a route with the application, whose lifespan no route sees."""
    router = getattr(app, "router", app)
    own, error = router.lifespan_context, middleware.configuration_error

    def lifespan(app: object) -> AbstractAsyncContextManager[Any]:
        if error is None:
            return middleware.services.around(own, app)
        # Not before: an error at import makes Uvicorn's workers die and restart for ever.
        raise ConfigurationError(error)

    router.lifespan_context = lifespan
