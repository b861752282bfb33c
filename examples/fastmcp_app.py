"""A FastMCP server with stateless HTTP, on any number of workers, whose `ctx.set_state` lasts as long as the session.

FastMCP keeps its state under the connection's id, of which there is a new one for each request here. With
`SessionStateStore` it is kept in the session instead. `history` asks for the session itself, by FastMCP's own
`Depends`, which the tool's schema does not show. The same file runs on FastMCP 3 and 4.

    MCP_SESSIONS_KEYS=... uvicorn --app-dir examples fastmcp_app:app
"""

from __future__ import annotations

from fastmcp import Context, FastMCP
from fastmcp.dependencies import Depends
from starlette.middleware import Middleware

from mcp_sessions import MCPSessionMiddleware, Session
from mcp_sessions.integrations.fastmcp import SessionStateStore, require_session

mcp = FastMCP("translator", session_state_store=SessionStateStore())


@mcp.tool
async def choose_language(language: str, ctx: Context) -> str:
    """Choose the language of later calls."""
    await ctx.set_state("language", language)
    return f"From now on: {language}."


@mcp.tool
async def say(word: str, ctx: Context, session: Session = Depends(require_session)) -> str:
    """Say a word in the chosen language."""
    language = await ctx.get_state("language") or "English"
    await session.data.update("history", lambda history: [*history, word], default=[])
    return f"{word}, in {language}"


@mcp.tool
async def history(session: Session = Depends(require_session)) -> list[str]:
    """List all words of this session."""
    words: list[str] = await session.data.get("history", [])
    return words


app = mcp.http_app(stateless_http=True, middleware=[Middleware(MCPSessionMiddleware, keys="env:MCP_SESSIONS_KEYS")])
