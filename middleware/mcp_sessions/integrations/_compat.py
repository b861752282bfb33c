"""What is read of FastAPI that it does not document: the routers that `include_router` leads to.

`tests/integration/test_starlette.py` includes routers, also in an application that has served them. In versions without
these the functions find nothing, and `add_sessions` then says that it found no endpoint.
"""

from __future__ import annotations

from typing import Any


def included_router(route: Any) -> tuple[Any, str] | None:
    """Return the router that a route of an application includes, and its prefix there, or None for other routes."""
    router = getattr(route, "original_router", None)
    return None if router is None else (router, getattr(getattr(route, "include_context", None), "prefix", ""))


def routes_changed(router: Any) -> None:
    """Make FastAPI read a router's routes again: it keeps what it made of an included one."""
    if changed := getattr(router, "_mark_routes_changed", None):
        changed()
