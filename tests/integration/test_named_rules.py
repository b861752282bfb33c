"""Rules of `require=` by name, against what a real server has: checked as it starts, or at the first request."""

import re
from importlib import import_module
from typing import Any

import pytest
from clients import SECRET, RealClient, call, http, lifespan, started
from environments import needs

from mcp_sessions import ConfigurationError, MCPSessionMiddleware, add_sessions

from .servers import FASTMCP, FRAMEWORKS, Cell, http_app, server_class

PLACES = [add_sessions, MCPSessionMiddleware]


async def hi() -> str:
    return "hi"


async def check_out() -> str:
    return "paid"


def shop(framework: str) -> Any:
    """A server with two tools, a prompt and a resource."""
    mcp = server_class(framework)("s")
    for tool in (hi, check_out):
        mcp.tool()(tool)
    mcp.prompt()(hi)
    mcp.resource("res://shop/cart")(hi)
    return mcp


def app_of(framework: str, place: Any = MCPSessionMiddleware, mcp: Any = None, **options: Any) -> Any:
    return place(http_app(mcp or shop(framework), Cell(framework, json=True)), keys=SECRET, **options)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(
    ("require", "meant"),
    [
        ({"tools/call": ["Hi"]}, "hi"),
        ({"tools/call": ["hi", "check-out"]}, "check_out"),
        ({"tools/call": ["CHECKOUT"]}, "check_out"),
        ({"tools/call": ["checkk_out"]}, "check_out"),
        ({"tools/call": True, "prompts/get": ["HI"]}, "hi"),
    ],
)
async def test_misspelt_name_refuses_to_start(require: Any, meant: str, framework: str, place: Any) -> None:
    said = await started(app_of(framework, place, require=require))
    assert said["type"] == "lifespan.startup.failed"
    assert f"Did you mean {meant!r}?" in said["message"]


@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_misspelt_name_refuses_first_request_without_lifespan(framework: str) -> None:
    app = app_of(framework, require={"tools/call": ["Hi"]})
    async with lifespan(app.app):
        for _ in range(2):
            with pytest.raises(ConfigurationError, match="Did you mean 'hi'"):
                await call(app, http(), b"{}")


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(
    ("require", "missing"),
    [
        ({"tools/call": ["hi", "check_out"], "prompts/get": ["hi"], "resources/read": True}, []),
        ({"tools/call": ["refund"]}, ["refund"]),
        ({"tools/call": ["check_out2"], "prompts/get": ["greet"]}, ["check_out2", "greet"]),
    ],
)
async def test_unknown_name_is_warned_of(
    require: Any, missing: list[str], framework: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be added later."""
    async with lifespan(app_of(framework, require=require)):
        pass
    found = [match[1] for line in caplog.messages if (match := re.match("require= names '(.*?)' for", line))]
    assert found == missing


async def test_server_that_lists_in_pages_or_not_at_all_is_believed(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody can say what it has."""
    app = app_of(FRAMEWORKS[0], require={"tools/call": ["Hi"]})
    server = next(part.app for part in _managers(app))
    if hasattr(server, "get_request_handler"):
        handler = server.get_request_handler("tools/list")

        async def list_a_page(context: Any, params: Any) -> Any:
            return (await handler.handler(context, params)).model_copy(update={"next_cursor": "more"})

        server.add_request_handler("tools/list", import_module("mcp_types").PaginatedRequestParams, list_a_page)
    else:
        types = import_module("mcp.types")
        original = server.request_handlers[types.ListToolsRequest]

        async def list_a_page_of_sdk_1(request: Any) -> Any:
            result = await original(request)
            return types.ServerResult(result.root.model_copy(update={"nextCursor": "more"}))

        server.request_handlers[types.ListToolsRequest] = list_a_page_of_sdk_1
    async with lifespan(app):
        pass
    assert "require= names" not in caplog.text


def _managers(app: Any) -> Any:
    from mcp_sessions._server.route_tree import managers, reachable

    return managers(reachable(app.app, "/mcp"))


# --- tools that run others -----------------------------------------------------------------------


def transformed(kind: str, **options: Any) -> Any:
    """A server of FastMCP with a transform, whose tool runs others or reads resources."""
    mcp = shop(FASTMCP)
    module, name = kind.rsplit(".", 1)
    transform = getattr(import_module(f"fastmcp.{module}"), name)
    mcp.add_transform(transform(mcp) if name.endswith("AsTools") else transform(**options))
    return mcp


BY_TOOL = {"tools/call": ["check_out"]}
REGEX, BM25 = "server.transforms.search.RegexSearchTransform", "server.transforms.search.BM25SearchTransform"
RESOURCES, PROMPTS = "server.transforms.ResourcesAsTools", "server.transforms.PromptsAsTools"


@pytest.mark.parametrize(
    ("kind", "options", "require", "tool"),
    [
        (REGEX, {}, BY_TOOL, "call_tool"),
        (BM25, {"call_tool_name": "run"}, BY_TOOL, "run"),
        (REGEX, {}, lambda request: request.target == "check_out", "call_tool"),
        (RESOURCES, {}, {"resources/read"}, "read_resource"),
        (PROMPTS, {}, {"prompts/get": ["hi"]}, "get_prompt"),
    ],
)
async def test_tool_that_runs_others_refuses_to_start(kind: str, options: Any, require: Any, tool: str) -> None:
    for mounted in (False, True):
        mcp = transformed(kind, **options)
        if mounted:
            outer = server_class(FASTMCP)("outer")
            outer.mount(mcp)
            mcp = outer
        said = await started(app_of(FASTMCP, mcp=mcp, require=require))
        assert said["type"] == "lifespan.startup.failed"
        assert f"the tool {tool!r} does what" in said["message"]


@needs("fastmcp<4")
@pytest.mark.filterwarnings("ignore:.*ToolMiddleware is deprecated")
@pytest.mark.parametrize(
    ("kind", "require", "tool"),
    [("Resource", {"resources/read": True}, "read_resource"), ("Prompt", {"prompts/get": ["hi"]}, "get_prompt")],
)
async def test_middleware_whose_tools_run_others_refuses_to_start(kind: str, require: Any, tool: str) -> None:
    mcp = shop(FASTMCP)
    mcp.add_middleware(getattr(import_module("fastmcp.server.middleware.tool_injection"), f"{kind}ToolMiddleware")())
    said = await started(app_of(FASTMCP, mcp=mcp, require=require))
    assert f"the tool {tool!r} does what" in said["message"]


async def test_tool_of_a_namespace_is_named_as_clients_see_it() -> None:
    outer = server_class(FASTMCP)("outer")
    outer.mount(transformed(REGEX), namespace="shop")
    require = {"tools/call": ["shop_check_out"]}
    said = await started(app_of(FASTMCP, mcp=outer, require=require))
    assert "the tool 'shop_call_tool' does what" in said["message"]
    require["tools/call"].append("shop_call_tool")
    assert (await started(app_of(FASTMCP, mcp=outer, require=require)))["type"] == "lifespan.startup.complete"


@pytest.mark.parametrize(
    ("kind", "require"),
    [
        (REGEX, {"tools/call": ["check_out", "call_tool"]}),
        (REGEX, {"tools/call": True}),
        (REGEX, "always"),
        (REGEX, "never"),
        (REGEX, {"resources/read": True}),
        (REGEX, lambda request: request.target in {"check_out", "call_tool"}),
        (RESOURCES, BY_TOOL),
        (RESOURCES, {"resources/read": True, "tools/call": ["read_resource"]}),
    ],
)
async def test_tool_that_rules_name_or_need_not_may_run_others(kind: str, require: Any) -> None:
    app = app_of(FASTMCP, mcp=transformed(kind), require=require)
    async with lifespan(app):
        arguments = {"name": "check_out", "arguments": {}}
        answer = await RealClient(app).send("tools/call", {"name": "call_tool", "arguments": arguments})
        is_guarded = kind == REGEX and require not in ("never", {"resources/read": True})
        assert ("error" in answer.json and answer.error["code"] == -31044) is is_guarded


@pytest.mark.parametrize("require", [BY_TOOL, lambda request: request.target == "check_out"])
async def test_tool_behind_proxy_that_may_run_others_is_warned_of(
    require: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A proxy shows the names of tools only."""
    proxy = import_module("fastmcp.server").create_proxy(transformed(REGEX, always_visible=["check_out"]))
    async with lifespan(app_of(FASTMCP, mcp=proxy, require=require)):
        pass
    assert "the tool 'call_tool' may do what tools/call does" in caplog.text


@pytest.mark.parametrize("require", ["always", {"tools/call": ["check_out", "call_tool"]}, {"prompts/get": True}])
async def test_tool_behind_proxy_that_evades_nothing_is_not_warned_of(
    require: Any, caplog: pytest.LogCaptureFixture
) -> None:
    proxy = import_module("fastmcp.server").create_proxy(transformed(REGEX, always_visible=["check_out"]))
    async with lifespan(app_of(FASTMCP, mcp=proxy, require=require)):
        pass
    assert "may do what" not in caplog.text


async def test_name_without_namespace_refuses_to_start() -> None:
    outer = server_class(FASTMCP)("outer")
    outer.mount(shop(FASTMCP), namespace="shop")
    said = await started(app_of(FASTMCP, mcp=outer, require={"tools/call": ["hi"]}))
    assert "Did you mean 'shop_hi'?" in said["message"]
