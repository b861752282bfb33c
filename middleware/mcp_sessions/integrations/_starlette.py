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
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from starlette.applications import Starlette
from starlette.routing import BaseRoute, Host, Mount, Route

from .._dialects import Options
from .._errors import ConfigurationError, Refusal
from .._server.environment import takes_options
from .._server.middleware import MCPSessionMiddleware
from .._server.startup_checks import MISPLACED
from ._compat import included_router, routes_changed
from .fastapi import answer_refusal

if TYPE_CHECKING:
    from typing_extensions import Unpack

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
        raise ConfigurationError(f"{endpoints[0].name} has sessions already; add them once")
    _join(routed, _place(endpoints, options))
    if isinstance(routed, Starlette):
        routed.exception_handlers.setdefault(Refusal, answer_refusal)
    return app


def _known(app: object) -> list[_Endpoint]:
    endpoints = [endpoint for endpoint in _walk(_Endpoint(app)) if endpoint.serves_mcp]
    if not endpoints:
        raise ConfigurationError(
            "add_sessions() found no endpoint of the official SDK or FastMCP; name its route with path=, "
            "as in path='/mcp', or wrap the application: MCPSessionMiddleware(app, ...)"
        )
    if len({id(endpoint.owner) for endpoint in endpoints}) > 1:
        paths = ", ".join(sorted({endpoint.name for endpoint in endpoints}))
        raise ConfigurationError(f"add_sessions() found several MCP endpoints ({paths}); say which with path=")
    return endpoints


def _at(app: object, path: str) -> list[_Endpoint]:
    """Return the endpoints of the one router that has routes at a path: GET and POST may be two of them."""
    if not path.startswith("/"):
        raise ConfigurationError(f"path={path!r} must begin with '/', as in path='/mcp'")
    everywhere = list(_walk(_Endpoint(app)))
    here = [endpoint for endpoint in everywhere if endpoint.name == (path.rstrip("/") or "/")]
    endpoints = [endpoint for endpoint in here if not endpoint.is_subtree] or here[-1:]
    if not any(endpoint.posts for endpoint in endpoints):
        others = ", ".join(sorted({endpoint.name for endpoint in everywhere if endpoint.posts})) or "none"
        raise ConfigurationError(
            f"no route takes POST at path={path!r} (those that do: {others}); "
            "correct path=, or wrap the application: MCPSessionMiddleware(app, ...)"
        )
    if len({id(endpoint.router) for endpoint in endpoints}) > 1:
        raise ConfigurationError(
            f"several routers serve path={path!r}; call add_sessions() with the sub-application that is meant"
        )
    return endpoints


class _AtEndpoint(MCPSessionMiddleware):
    """The middleware inside of a route: whatever comes here came for the endpoint."""

    _is_at_endpoint = True


def _place(endpoints: list[_Endpoint], options: Options) -> MCPSessionMiddleware:
    first = endpoints[0]
    middleware = MCPSessionMiddleware if first.is_subtree else _AtEndpoint
    made = middleware(first.app, **options)
    if made.configuration_error == MISPLACED:
        raise ConfigurationError(
            f"the application at {first.name} authenticates its callers inside; give path= the full path of the "
            "MCP route in it, or pass principal=, a function of the ASGI scope that returns the caller"
        )
    for endpoint in {(id(one.holder), one.attribute): one for one in endpoints}.values():
        placed = copy.copy(made)  # the routes of one endpoint share their keys and their store
        placed.app = endpoint.app
        setattr(endpoint.holder, endpoint.attribute, placed)
        routes_changed(endpoint.router)
    return made


_SERVES_MCP: Final = frozenset({"StreamableHTTPASGIApp", "StreamableHTTPSessionManager"})


@dataclass(frozen=True, slots=True)
class _Endpoint:
    """An ASGI app at the end of a route, and the attribute that holds it; on the way there, any app of the tree."""

    app: Any
    path: str = ""  # full
    holder: object = None  # a route, or the middleware in front of the app
    attribute: str = "app"  # under which the holder has it
    router: object = None  # to which the route belongs
    posts: bool = True  # whether the route takes POST
    has_sessions: bool = False  # whether the middleware stands in front of it already
    is_subtree: bool = False  # whether it is a mounted app with routes of its own
    is_included: bool = False  # whether FastAPI's `include_router` leads there
    above: frozenset[int] = frozenset()  # the ids of the apps around it

    @property
    def name(self) -> str:
        return self.path.rstrip("/") or "/"

    @property
    def owner(self) -> object:  # the application that serves, or the object whose method it is
        return getattr(self.app, "__self__", self.app)

    @property
    def serves_mcp(self) -> bool:
        things = (self.owner, getattr(self.owner, "session_manager", None))
        return any(cls.__name__ in _SERVES_MCP for thing in things for cls in type(thing).__mro__)


def _walk(at: _Endpoint) -> Iterator[_Endpoint]:
    app = at.app
    if id(app) in at.above:  # a router that is mounted in itself
        return
    at = replace(at, above=at.above | {id(app)}, has_sessions=at.has_sessions or _has_sessions(app))
    if (routes := _routes(app)) is not None:
        for route in routes:
            yield from _walk_route(route, replace(at, router=app))
    elif callable(inner := getattr(app, "app", None)):
        yield from _walk(replace(at, app=inner, holder=app, attribute="app"))
    else:
        yield at


def _walk_route(route: object, at: _Endpoint) -> Iterator[_Endpoint]:
    if isinstance(route, Route):
        yield from _walk(_at_route(route, at))
    elif isinstance(route, Mount):
        at = replace(at, app=route.app, path=at.path + route.path, holder=route, attribute="app", is_included=False)
        found = list(_walk(at))
        yield from found
        if not any(endpoint.router is at.router for endpoint in found):
            yield replace(at, is_subtree=True)
    elif isinstance(route, Host):
        yield from _walk(replace(at, app=route.app, holder=route, attribute="app", is_included=False))
    elif (included := included_router(route)) is not None:
        router, prefix = included
        yield from _walk(replace(at, app=router, path=at.path + prefix, is_included=True))


def _at_route(route: Route, at: _Endpoint) -> _Endpoint:
    posts = not route.methods or "POST" in route.methods
    at = replace(at, path=at.path + route.path, holder=route, posts=posts)
    if hasattr(route, "get_route_handler"):
        # A FastAPI route: what it serves is made anew for each inclusion, and only `handle` is in front of all.
        return replace(at, app=route.handle, attribute="handle")
    if at.is_included:  # FastAPI makes a new route of the endpoint
        app = route.app if inspect.isroutine(route.endpoint) else route.endpoint
        return replace(at, app=app, attribute="endpoint")
    return replace(at, app=route.app, attribute="app")


def _routes(app: object) -> list[BaseRoute] | None:
    routes = getattr(app, "routes", None)
    return routes if isinstance(routes, list) else None


def _routed(app: Any) -> Any | None:
    """Return the application with routes, behind any middleware, or None."""
    seen: set[int] = set()
    while app is not None and _routes(app) is None:
        if id(app) in seen:  # a middleware in front of itself
            return None
        seen.add(id(app))
        app = getattr(app, "app", None)
    return app


def _has_sessions(app: object) -> bool:
    entries = getattr(app, "user_middleware", ())
    classes = [type(app), *(getattr(entry, "cls", None) for entry in entries)]
    return any(isinstance(cls, type) and issubclass(cls, MCPSessionMiddleware) for cls in classes)


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
