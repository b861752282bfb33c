"""An event store, as either SDK wants one, and servers that keep their events in it."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from apps import grouped
from starlette.types import ASGIApp

from mcp_sessions import MCPSessionMiddleware

from .servers import KEYS, Cell, Guard, Hall

KEPT: Final = "what only a live session may hear"


def event_store() -> Any:
    """A new one, for the SDK that is installed: everything is kept, and told again in order."""
    interface = import_module("mcp.server.streamable_http")

    class Events(interface.EventStore):  # type: ignore[misc,name-defined]  # whichever SDK is installed
        def __init__(self) -> None:
            self.kept: list[tuple[str, Any]] = []

        async def store_event(self, stream_id: str, message: Any) -> str:
            self.kept.append((stream_id, message))
            return str(len(self.kept))

        async def replay_events_after(self, last_event_id: str, send_callback: Any) -> str:
            last = int(last_event_id)
            stream = self.kept[last - 1][0]
            kept = enumerate(self.kept[last:], last + 1)
            missed = [(number, message) for number, (other, message) in kept if other == stream and message is not None]
            for number, message in missed:
                await send_callback(interface.EventMessage(message, str(number)))
            return stream

    return Events()


def with_events(cell: Cell, hall: Hall, guard: Guard | None, **options: Any) -> ASGIApp:
    """A stateful server that keeps its events, with one tool, inside the middleware."""

    async def hold() -> str:
        await hall.enter("hold")
        return KEPT

    if cell.framework == "sdk2":
        mcp = import_module("mcp.server.mcpserver").MCPServer("small")
        app = mcp.streamable_http_app(event_store=event_store())
    elif cell.framework == "sdk1":
        mcp = import_module("mcp.server.fastmcp").FastMCP("small", event_store=event_store())
        app = mcp.streamable_http_app()
    else:
        mcp = import_module("fastmcp").FastMCP("small")
        app = mcp.http_app(event_store=event_store())
    mcp.tool()(hold)
    return MCPSessionMiddleware(app, **grouped(**{"keys": KEYS, **options}))
