"""Spans around the servers of each framework: whose is the server span of a message, and what it says.

Source: OpenTelemetry's conventions for MCP servers (`CONVENTIONS`, "mcp.server"), attribute by attribute. Left out:
`client.port`, which names no client behind a proxy.
"""

from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any

import pytest
from apps import Server, sessions
from clients import RealClient, call, credentials, http, lifespan
from environments import needs, require
from fastapi import FastAPI
from recorded import process_wide, said
from starlette.applications import Starlette
from starlette.routing import Mount, Route

require("opentelemetry-sdk>=1.28")

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode

from integration.servers import CELLS, FRAMEWORKS, Cell, bare

# --- whose span it is ----------------------------------------------------------------------------------

CELL_OF = {cell.framework: cell for cell in CELLS}
MAKES = {"sdk1": False, "sdk2": True, "fastmcp3": True, "fastmcp4": True}


async def makes_its_own(app: Any, path: str | None = "/mcp") -> bool:
    """Whether the middleware leaves the span of a message to the server, which need not even have started."""
    with process_wide().recording() as spans, suppress(RuntimeError, TypeError):
        await call(sessions(app, path=path), http(path=path or "/mcp"), b'{"jsonrpc":"2.0","id":1,"method":"ping"}')
    return "ping" not in {span.name for span in spans}


@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_a_frameworks_server_is_known(framework: str) -> None:
    """Also where it is mounted: SDK 2.x and both FastMCPs make their own, SDK 1.x does not."""
    app = FastAPI()
    app.mount("/tools", bare(CELL_OF[framework]))
    for served, path in ((bare(CELL_OF[framework]), "/mcp"), (bare(CELL_OF[framework]), None), (app, "/tools/mcp")):
        assert await makes_its_own(served, path) == MAKES[framework]
    assert not await makes_its_own(app, "/mcp")


def small_server() -> Any:
    return import_module("mcp.server.lowlevel").Server("small")


def manager() -> Any:
    """The SDK's session manager, as servers without its own ASGI application use it."""
    return import_module("mcp.server.streamable_http_manager").StreamableHTTPSessionManager(small_server())


async def test_a_session_manager_in_an_applications_own_lines_is_known() -> None:
    """As the SDK's examples for servers of a lower level have it: in a closure, as a method, in a module's function."""
    held, gone = manager(), None
    closure: Any = lambda scope, receive, send: (gone, held.handle_request(scope, receive, send))  # noqa: E731, F821
    del gone  # a name that is not bound any more
    names = {"held": held}
    exec("def handle(scope, receive, send):\n    return held.handle_request(scope, receive, send)", names)
    for handle in (closure, held.handle_request, names["handle"]):
        assert await makes_its_own(Starlette(routes=[Mount("/mcp", handle)])) == MAKES[FRAMEWORKS[0]]


@pytest.mark.parametrize("app", [Server(), Starlette(routes=[Route("/mcp", partial(print))]), FastAPI()])
async def test_other_applications_make_none(app: Any) -> None:
    assert not await makes_its_own(app)


@needs("mcp>=2")
async def test_a_server_whose_own_spans_are_off_makes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    held = manager()
    held.app.middleware.clear()
    assert not await makes_its_own(held.handle_request, None)
    monkeypatch.setattr(import_module("fastmcp").settings, "telemetry_mode", "propagation_only")
    assert not await makes_its_own(bare(CELL_OF["fastmcp4"]))


# --- what it says --------------------------------------------------------------------------------------

CLIENT = {"io.modelcontextprotocol/clientInfo": {"name": "wire", "version": "1"}}
JSON = [cell for cell in CELLS if cell.json and not cell.stateful]
COMMON = {
    "network.protocol.name": "http",  # recommended, and so are the next two and the version of the protocol
    "network.protocol.version": "1.1",
    "network.transport": "tcp",
    "client.address": "127.0.0.1",  # where the application asks for it
}
UNKNOWN = "-32602" if FRAMEWORKS[0] == "sdk1" else "-32601"  # what it calls a method that it does not know
TOOL = {"gen_ai.tool.name": "whoami", "gen_ai.operation.name": "execute_tool"}
# By the method: its params, the span's name, and what the span has beyond what all have. `jsonrpc.protocol.version` is
# for versions that are not 2.0, of which there are none here.
ROWS: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "tools/call": ({"name": "whoami", "arguments": {}}, "tools/call whoami", TOOL),
    "prompts/get": ({"name": "who"}, "prompts/get who", {"gen_ai.prompt.name": "who"}),
    "resources/read": ({"uri": "session://me"}, "resources/read", {"mcp.resource.uri": "session://me"}),
    "tools/list": ({}, "tools/list", {}),
    "no/such": ({}, "_OTHER", {"rpc.response.status_code": UNKNOWN}),
}
NEVER = {"gen_ai.tool.call.arguments", "gen_ai.tool.call.result"}  # opt-in
ONLY = {"gen_ai.tool.name", "gen_ai.operation.name", "gen_ai.prompt.name", "mcp.resource.uri", "error.type"}


def is_ours(span: ReadableSpan) -> bool:
    return span.instrumentation_scope is not None and span.instrumentation_scope.name == "mcp_sessions"


@pytest.mark.parametrize("cell", JSON, ids=str)
@pytest.mark.parametrize("method", ROWS)
async def test_a_framework_s_span_has_what_the_conventions_ask_for(cell: Cell, method: str) -> None:
    """What it leaves out is added, whichever of the two makes it."""
    if (cell.framework[0], method) == ("f", "no/such"):
        pytest.skip("FastMCP calls that error by its class")
    params, name, own = ROWS[method]
    app = sessions(bare(cell), transport="off", principal=lambda scope: "ann", user=lambda principal: principal.subject)
    async with lifespan(app):
        client = RealClient(app, modern=cell.modern)
        held = credentials((await client.send("sessions/create", {"_meta": CLIENT})).result["session"])
        with process_wide().recording() as spans:
            await client.send(method, params, session=held)
    servers = [span for span in spans if span.kind is SpanKind.SERVER and said(span, "mcp.method.name") == [method]]
    (found,) = [span for span in servers if is_ours(span)] or servers
    attributes: dict[str, Any] = dict(found.attributes or {})
    version = {"mcp.protocol.version": "2026-07-28" if cell.modern else "2025-11-25"}
    expected = {**COMMON, **version, "mcp.method.name": method, **own}
    assert found.name == (name if is_ours(found) or method != "no/such" else method)  # the server names its own span
    assert {key: attributes.get(key) for key in expected} == expected
    assert attributes["jsonrpc.request.id"].isdigit()
    assert attributes["session.id"].startswith("ses_")
    fails = method == "no/such" and not is_ours(found)  # SDK 2.x takes it for its own error
    assert not attributes.keys() & (NEVER | (ONLY - {*expected, *(["error.type"] if fails else [])}))
    assert found.status.status_code is (StatusCode.ERROR if fails else StatusCode.UNSET)
