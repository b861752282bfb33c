"""A server with everything that the official conformance suite requires, on the official SDK 2.x, in both eras.

Its results are in `content`, its questions to the client in `questions`. It keeps transport sessions and events, so
that the suite finds streams to resume.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import anyio
import mcp_types as types
from mcp.server.caching import CacheHint
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ServerEvent,
    ToolsListChanged,
)
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel
from starlette.applications import Starlette

from integration.event_store import event_store

from . import content, questions
from .content import Json, result, text

Context = ServerRequestContext[Any, Any]
Tool = Callable[[Context, types.CallToolRequestParams], Awaitable[Json]]

PAUSE: Final = 0.05  # seconds between two messages of one call
RETRY: Final = 500  # milliseconds after which a client resumes a stream
CACHEABLE: Final = (
    *("server/discover", "tools/list", "prompts/list"),
    *("resources/list", "resources/templates/list", "resources/read"),
)


async def _progress(context: Context, _params: types.CallToolRequestParams) -> Json:
    for done in (0, 50, 100):
        await context.session.report_progress(done, 100)
        await anyio.sleep(PAUSE)
    return result(text("done"))


async def _log(context: Context, _params: types.CallToolRequestParams) -> Json:
    for line in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await context.session.send_log_message("info", line, "conformance", context.request_id)  # type: ignore[deprecated]
        await anyio.sleep(PAUSE)
    return result(text("logged"))


async def _reconnect(context: Context, _params: types.CallToolRequestParams) -> Json:
    """Break the stream that carries the answer, which the client resumes."""
    assert context.close_sse_stream is not None
    await context.close_sse_stream()
    await anyio.sleep(PAUSE)
    return result(text("after the break"))


def _answer(kind: type[BaseModel], made: Callable[[Any], Json]) -> Any:
    """Return a handler whose result is made of the params alone; some ask the client instead."""

    async def handle(_context: Context, params: Any) -> BaseModel:
        found = made(params)
        return (types.InputRequiredResult if "resultType" in found else kind).model_validate(found)

    return handle


def everything(*, stateless_http: bool = False, **more: Tool) -> Starlette:
    """Serve over Streamable HTTP, at `/mcp`, maybe with more tools."""
    bus = InMemorySubscriptionBus()

    def publishing(event: ServerEvent) -> Tool:
        async def publish(_context: Context, _params: types.CallToolRequestParams) -> Json:
            await bus.publish(event)
            return result(text("published"))

        return publish

    tools: dict[str, Tool | Json] = {
        **content.RESULTS,
        **questions.TOOLS,
        "test_tool_with_progress": _progress,
        "test_tool_with_logging": _log,
        "test_logging_tool": _log,
        "test_reconnection": _reconnect,
        "test_trigger_tool_change": publishing(ToolsListChanged()),
        "test_trigger_prompt_change": publishing(PromptsListChanged()),
        **more,
    }
    listed = [
        {"name": name, "description": "A tool of the suite", "inputSchema": content.schema(name)} for name in tools
    ]

    async def call_tool(
        context: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        tool = tools.get(params.name)
        if tool is None:
            raise MCPError(code=types.INVALID_PARAMS, message=f"Unknown tool: {params.name}")
        found = tool if isinstance(tool, dict) else await tool(context, params)
        kind = types.InputRequiredResult if "resultType" in found else types.CallToolResult
        return kind.model_validate(found)

    def schema(name: str) -> Mapping[str, Any] | None:
        return content.schema(name) if name in tools else None

    nothing = _answer(types.EmptyResult, lambda _: {})
    completion = {"completion": {"values": ["paris", "park", "party"], "total": 3, "hasMore": False}}
    server: Server[Any] = Server(  # type: ignore[deprecated]  # the older requirement set asks for logging
        "conformance",
        version="1",
        cache_hints=dict.fromkeys(CACHEABLE, CacheHint(ttl_ms=60_000, scope="public")),
        get_tool_input_schema=schema,
        on_list_tools=_answer(types.ListToolsResult, lambda _: {"tools": listed}),
        on_call_tool=call_tool,
        on_list_resources=_answer(types.ListResourcesResult, lambda _: {"resources": content.RESOURCES}),
        on_list_resource_templates=_answer(
            types.ListResourceTemplatesResult, lambda _: {"resourceTemplates": content.TEMPLATES}
        ),
        on_read_resource=_answer(
            types.ReadResourceResult, lambda params: {"contents": [content.resource(str(params.uri))]}
        ),
        on_subscribe_resource=nothing,
        on_unsubscribe_resource=nothing,
        on_subscriptions_listen=ListenHandler(bus),
        on_list_prompts=_answer(types.ListPromptsResult, lambda _: {"prompts": [*content.PROMPTS, questions.PROMPT]}),
        on_get_prompt=_answer(types.GetPromptResult, _prompt),
        on_completion=_answer(types.CompleteResult, lambda _: completion),
        on_set_logging_level=nothing,
    )
    server.middleware.append(RequestStateBoundary(RequestStateSecurity.ephemeral(), default_audience="conformance"))
    return server.streamable_http_app(event_store=event_store(), retry_interval=RETRY, stateless_http=stateless_http)


def _prompt(params: types.GetPromptRequestParams) -> Json:
    if params.name == questions.PROMPT["name"]:
        return questions.prompt(params)
    return content.prompt(params.name, params.arguments or {})
