"""Sessions as dependencies of FastAPI."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import pytest
from apps import grouped
from clients import SECRET, Client, Incoming, call, http
from fastapi import Depends, FastAPI, Request
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.types import ASGIApp

import mcp_sessions
from mcp_sessions import ConfigurationError, MCPSessionMiddleware, Session, add_sessions
from mcp_sessions._errors import StoreUnavailable
from mcp_sessions._server.current import WRAP
from mcp_sessions.integrations.fastapi import add_exception_handlers, optional_session, require_session

WHY = "it keeps no cookies, or sent no server/discover"
LACKING = f'Session required: {WHY}; {WRAP}, or set wire=Wire(era="legacy")'
Required = Annotated[Session, Depends(require_session)]
Optional = Annotated[Session | None, Depends(optional_session)]


def answer(message: dict[str, Any], session: Session | None) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": message["id"], "result": {"content": session and session.ref}}


async def required(message: dict[str, Any], session: Required) -> dict[str, Any]:
    return answer(message, session)


async def called(message: dict[str, Any]) -> dict[str, Any]:
    return answer(message, mcp_sessions.require_session())


async def optional(message: dict[str, Any], session: Optional) -> dict[str, Any]:
    return answer(message, session)


async def raw(request: Request, session: Required) -> None: ...


async def failing(message: dict[str, Any], session: Optional) -> None:
    raise StoreUnavailable


async def streamed(request: Request, session: Optional) -> None:
    _ = [piece async for piece in request.stream()]
    raise StoreUnavailable


def endpoints() -> FastAPI:
    app = FastAPI()
    add_exception_handlers(app)
    for endpoint in (required, called, optional, raw, failing, streamed):
        app.api_route(f"/{endpoint.__name__}", methods=["POST", "GET"])(endpoint)
    return app


def added(path: str, **options: Any) -> ASGIApp:
    return add_sessions(endpoints(), path=path, keys=SECRET, admission="own", **grouped(**options))


def in_front(path: str, **options: Any) -> ASGIApp:
    app = endpoints()
    app.add_middleware(MCPSessionMiddleware, path=path, keys=SECRET, admission="own", **grouped(**options))
    return app


def client_of(app: ASGIApp, path: str) -> Client:
    return Client(app, path=path, query_string=b"")


PLACES = pytest.mark.parametrize("place", [added, in_front])
Place = Callable[..., ASGIApp]


@PLACES
@pytest.mark.parametrize("path", ["/required", "/optional"])
async def test_an_endpoint_gets_the_session_that_it_depends_on(place: Place, path: str) -> None:
    client = client_of(place(path), path)
    one, other = await client.create(), await client.create()
    found = [(await client.tool(session=held)).result["content"] for held in (one, other, one)]
    assert found[0] == found[2] != found[1]


@PLACES
async def test_an_optional_session_may_be_none(place: Place) -> None:
    client = client_of(place("/optional"), "/optional")
    assert (await client.tool()).result["content"] is None


@PLACES
async def test_a_required_session_that_is_missing_is_the_protocols_error(place: Place) -> None:
    """The answer has the request's own id."""
    for path in ("/required", "/called"):
        client = client_of(place(path), path)
        refused = await client.send("tools/call", {"name": "whoami"}, id="seven")
        assert refused.json == {"jsonrpc": "2.0", "id": "seven", "error": {"code": -31044, "message": LACKING}}


@pytest.mark.parametrize("kind", [FastAPI, Starlette])
async def test_add_sessions_makes_it_an_answer_by_itself(kind: Any) -> None:
    """With FastAPI as with Starlette, where the endpoint calls `require_session()`."""

    async def endpoint(request: Request) -> JSONResponse:
        return JSONResponse(answer(await request.json(), mcp_sessions.require_session()))

    app = kind()
    app.add_route("/mcp", endpoint, methods=["POST"])
    client = Client(add_sessions(app, path="/mcp", keys=SECRET, admission="own"))
    assert (await client.tool(session=await client.create())).result["content"].startswith("ses_")
    assert (await client.tool()).error == {"code": -31044, "message": LACKING}


@pytest.mark.parametrize(
    "body", [b'[{"jsonrpc": "2.0", "id": 1, "method": "ping"}]', b"no JSON"], ids=["batch", "text"]
)
async def test_what_is_no_single_message_has_no_id_to_answer_to(body: bytes) -> None:
    refused = await call(endpoints(), http(path="/raw", query_string=b"", mcp_session=None), body)
    assert refused.json["id"] is None
    assert refused.error["code"] == -31044


async def test_a_message_that_the_endpoint_read_itself_has_no_id_to_answer_to() -> None:
    refused = await client_of(added("/streamed"), "/streamed").tool()
    assert (refused.status, refused.json["id"], refused.error["code"]) == (503, None, StoreUnavailable().code)


async def test_a_client_that_left_before_its_message_came_is_no_failure() -> None:
    scope = http(path="/raw", query_string=b"", mcp_session=None)
    refused = await call(endpoints(), scope, Incoming({"type": "http.disconnect"}))
    assert (refused.json["id"], refused.error["code"]) == (None, -31044)


async def test_a_refusal_says_when_to_try_again() -> None:
    refused = await client_of(added("/failing"), "/failing").tool()
    assert (refused.status, refused.headers[b"retry-after"]) == (503, b"1")
    assert refused.error["message"] == "Session store unavailable"


@pytest.mark.parametrize(("place", "method"), [(None, "POST"), (added, "GET")], ids=["no middleware", "no message"])
async def test_a_request_that_no_middleware_looks_at_says_so(place: Place | None, method: str) -> None:
    """Rather than being taken for one without a session."""
    app = endpoints() if place is None else place("/raw")
    with pytest.raises(ConfigurationError, match=rf"looked for a session in {method} /raw: .* add_sessions\("):
        await call(app, http(method, "/raw", query_string=b""), b"{}")


def test_the_openapi_document_does_not_tell() -> None:
    async def without(message: dict[str, Any]) -> Any: ...

    documents = []
    for endpoint in (required, optional, without):
        app = FastAPI()
        app.post("/mcp", name="endpoint", operation_id="endpoint", response_model=dict[str, Any])(endpoint)
        documents.append(app.openapi())
    assert documents[0] == documents[1] == documents[2]
