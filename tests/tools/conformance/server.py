"""A server with everything that the official conformance suite requires, on the official SDK 2.x, in both eras.

Its results are in `content`, its questions to the client in `questions`. It keeps transport sessions and events, so
that the suite finds streams to resume.
"""

from __future__ import annotations

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
from starlette.applications import Starlette

from integration.event_store import event_store

from . import content, questions
from .content import Json, result, text

Context = ServerRequestContext[Any, Any]
Tool = Callable[[Context, types.CallToolRequestParams], Awaitable[Json]]

ANY_ARGUMENTS: Final = {"type": "object"}
PAUSE: Final = 0.05  # seconds between two messages of one call
RETRY: Final = 500  # milliseconds after which a client resumes a stream
NAMES: Final = ("paris", "park", "party")


# --- tools that do something while they run ------------------------------------------------------


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


class Everything:
    """The server: a table of tools, to which more can be added, and a handler for each method."""

    def __init__(self, **more: Tool) -> None:
        self._bus = InMemorySubscriptionBus()
        self._tools: dict[str, Tool] = {
            **{name: self._constant(value) for name, value in content.RESULTS.items()},
            **questions.TOOLS,
            "test_tool_with_progress": _progress,
            "test_tool_with_logging": _log,
            "test_logging_tool": _log,
            "test_reconnection": _reconnect,
            "test_trigger_tool_change": self._publish(ToolsListChanged()),
            "test_trigger_prompt_change": self._publish(PromptsListChanged()),
            **more,
        }

    def app(self, *, stateless_http: bool = False) -> Starlette:
        """Serve over Streamable HTTP, at `/mcp`."""
        server: Server[Any] = Server(  # type: ignore[deprecated]  # the older requirement set asks for logging
            "conformance",
            version="1",
            cache_hints=dict.fromkeys(_CACHEABLE, CacheHint(ttl_ms=60_000, scope="public")),
            get_tool_input_schema=self._schema,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_resources=_list_resources,
            on_list_resource_templates=_list_templates,
            on_read_resource=_read_resource,
            on_subscribe_resource=_nothing,
            on_unsubscribe_resource=_nothing,
            on_subscriptions_listen=ListenHandler(self._bus),
            on_list_prompts=_list_prompts,
            on_get_prompt=_get_prompt,
            on_completion=_complete,
            on_set_logging_level=_nothing,
        )
        server.middleware.append(RequestStateBoundary(RequestStateSecurity.ephemeral(), default_audience="conformance"))
        return server.streamable_http_app(
            event_store=event_store(), retry_interval=RETRY, stateless_http=stateless_http
        )

    @staticmethod
    def _constant(value: Json) -> Tool:
        async def tool(_context: Context, _params: types.CallToolRequestParams) -> Json:
            return value

        return tool

    def _publish(self, event: ServerEvent) -> Tool:
        async def publish(_context: Context, _params: types.CallToolRequestParams) -> Json:
            await self._bus.publish(event)
            return result(text("published"))

        return publish

    def _schema(self, name: str) -> Mapping[str, Any] | None:
        return content.SCHEMAS.get(name, ANY_ARGUMENTS) if name in self._tools else None

    async def _list_tools(self, _context: Context, _params: Any) -> types.ListToolsResult:
        tools = [
            {"name": name, "description": "A tool of the suite", "inputSchema": self._schema(name)}
            for name in self._tools
        ]
        return types.ListToolsResult.model_validate({"tools": tools})

    async def _call_tool(
        self, context: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        if params.name not in self._tools:
            raise MCPError(code=types.INVALID_PARAMS, message=f"Unknown tool: {params.name}")
        found = await self._tools[params.name](context, params)
        if "resultType" in found:
            return types.InputRequiredResult.model_validate(found)
        return types.CallToolResult.model_validate(found)


_CACHEABLE: Final = (
    *("server/discover", "tools/list", "prompts/list"),
    *("resources/list", "resources/templates/list", "resources/read"),
)


# --- resources, prompts and the rest -------------------------------------------------------------


async def _list_resources(_context: Context, _params: Any) -> types.ListResourcesResult:
    return types.ListResourcesResult.model_validate({"resources": content.RESOURCES})


async def _list_templates(_context: Context, _params: Any) -> types.ListResourceTemplatesResult:
    return types.ListResourceTemplatesResult.model_validate({"resourceTemplates": content.TEMPLATES})


async def _read_resource(_context: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
    found = content.resource(str(params.uri))
    if found is None:
        raise MCPError(code=types.INVALID_PARAMS, message="Resource not found", data={"uri": str(params.uri)})
    return types.ReadResourceResult.model_validate({"contents": [found]})


async def _list_prompts(_context: Context, _params: Any) -> types.ListPromptsResult:
    prompts = [
        {
            "name": name,
            "description": "A prompt of the suite",
            "arguments": [
                {"name": argument, "description": "A text", "required": True}
                for argument in content.ARGUMENTS.get(name, ())
            ],
        }
        for name in (*content.PROMPTS, questions.PROMPT)
    ]
    return types.ListPromptsResult.model_validate({"prompts": prompts})


async def _get_prompt(
    _context: Context, params: types.GetPromptRequestParams
) -> types.GetPromptResult | types.InputRequiredResult:
    if params.name == questions.PROMPT:
        found = questions.prompt(params)
        if "resultType" in found:
            return types.InputRequiredResult.model_validate(found)
        return types.GetPromptResult.model_validate(found)
    return types.GetPromptResult.model_validate(content.PROMPTS[params.name](params.arguments or {}))


async def _complete(_context: Context, _params: types.CompleteRequestParams) -> types.CompleteResult:
    return types.CompleteResult.model_validate({"completion": {"values": list(NAMES), "total": 3, "hasMore": False}})


async def _nothing(_context: Context, _params: Any) -> types.EmptyResult:
    return types.EmptyResult()
