"""Sessions in handlers of the official SDK, 1.x and 2.x."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from importlib import import_module
from typing import Annotated, Any

import pytest
from clients import RealClient
from environments import needs

from mcp_sessions import Session, current_session, require_session

from .servers import SDK, Cell, connected, made


async def called(word: str) -> str:
    return f"{word} {require_session().ref}"


def served(*tools: Any, modern: bool, **options: Any) -> AbstractAsyncContextManager[RealClient]:
    return connected(made(Cell(SDK), *tools), modern=modern, **options)


@needs("mcp>=2")
@pytest.mark.parametrize("modern", [False, True])
async def test_resolved_sessions_stay_out_of_the_schema(modern: bool) -> None:
    """`Resolve` fills them in, and a model sees the tool's own arguments alone."""
    resolve = import_module("mcp.server.mcpserver").Resolve

    async def required(word: str, session: Any) -> str:
        return f"{word} {session.ref}"

    async def optional(word: str, session: Any) -> str:
        return f"{word} {'nobody' if session is None else session.ref}"

    required.__annotations__["session"] = Annotated[Session, resolve(require_session)]
    optional.__annotations__["session"] = Annotated[Session | None, resolve(current_session)]
    async with served(required, optional, modern=modern) as client:
        tools = (await client.send("tools/list")).result["tools"]
        assert [list(tool["inputSchema"]["properties"]) for tool in tools] == [["word"], ["word"]]
        held = await client.create()
        found = await client.call("required", held, word="I am")
        assert await client.call("optional", held, word="I am") == found
        assert await client.call("optional", None, word="I am") == "I am nobody"


@needs("mcp>=2")
@pytest.mark.parametrize("modern", [False, True])
async def test_a_session_that_a_tool_requires_is_asked_for_by_the_protocols_error(
    modern: bool,
) -> None:
    """As `require=` asks for it, so that a client can create one and call again."""
    async with served(called, modern=modern) as client:
        reply = await client.send("tools/call", {"name": "called", "arguments": {"word": "I am"}})
        assert reply.error["code"] == -31044
        assert reply.error["message"].startswith("Session required: ")
        assert 'set transport="auto"' in reply.error["message"]


@needs("mcp<2")
async def test_a_tool_of_an_older_sdk_fails_with_the_same_words() -> None:
    """SDK 1.x makes a failed result of every error of a tool."""
    async with served(called, modern=False) as client:
        reply = await client.send("tools/call", {"name": "called", "arguments": {"word": "I am"}})
        assert reply.result["isError"]
        assert "Session required" in reply.text
