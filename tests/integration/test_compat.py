"""What is read of FastAPI without being documented, in the versions that have it."""

from __future__ import annotations

import pytest
from clients import call, http
from environments import needs
from fastapi import APIRouter, FastAPI

from mcp_sessions.integrations._compat import included_router, routes_changed


@pytest.fixture
def router() -> APIRouter:
    router = APIRouter(prefix="/inner")

    @router.get("/one")
    async def one() -> str:
        return "one"

    return router


@needs("fastapi>=0.165")
def test_an_included_router_is_found_with_its_prefix(router: APIRouter) -> None:
    app = FastAPI()
    app.include_router(router, prefix="/outer")
    assert [found for route in app.routes if (found := included_router(route)) is not None] == [(router, "/outer")]


def test_other_routes_and_routers_are_left_alone() -> None:
    """Also in versions that copy the routes of a router, where nothing has to be read again."""
    assert included_router(FastAPI().routes[0]) is None
    routes_changed(object())


async def test_a_changed_route_is_served_by_an_application_that_included_it(router: APIRouter) -> None:
    """After the application has served the old one."""
    app = FastAPI()
    app.include_router(router)
    assert (await call(app, http("GET", "/inner/one", query_string=b""))).json == "one"
    router.routes[0].handle = _other  # type: ignore[method-assign]
    routes_changed(router)
    assert (await call(app, http("GET", "/inner/one", query_string=b""))).body == b"other"


async def _other(scope: object, receive: object, send: object) -> None:
    from starlette.responses import PlainTextResponse

    await PlainTextResponse("other")(scope, receive, send)  # type: ignore[arg-type]
