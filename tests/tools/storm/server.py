"""A stateful server of the official SDK on several workers; each answer says which process has sent it."""

import os
from importlib import import_module
from typing import Any

import anyio
from pydantic import BaseModel

from mcp_sessions import MCPSessionMiddleware, TransportSessions


def _server_class() -> Any:
    try:
        return import_module("mcp.server.mcpserver").MCPServer
    except ImportError:  # SDK 1.x
        return import_module("mcp.server.fastmcp").FastMCP


class Answer(BaseModel):
    word: str


mcp = _server_class()("storm")
Context = import_module(type(mcp).__module__.removesuffix(".server")).Context


async def echo(word: str) -> str:
    """Return the word, and the process."""
    await anyio.sleep(0.01)
    return f"{word} {os.getpid()}"


async def ask(word: str, ctx: Context) -> str:  # type: ignore[valid-type]
    """Return what the client answers to the word, and the process."""
    result = await ctx.elicit(word, Answer)  # type: ignore[attr-defined]
    return f"{result.data.word} {os.getpid()}"


for tool in (echo, ask):
    mcp.tool()(tool)
app = MCPSessionMiddleware(
    mcp.streamable_http_app(),
    keys="env:STORM_KEYS",
    store=os.environ["STORM_STORE"],
    transport=TransportSessions(bridge=True),
)
