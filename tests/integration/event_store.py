"""An event store for either SDK, and servers that keep their events in it."""

from importlib import import_module
from typing import Any, Final

import anyio
from apps import grouped
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcp_sessions import MCPSessionMiddleware

from .servers import KEYS, Cell, Hall, context_class, count, http_app, server_class

KEPT: Final = "what only a live session may hear"


def event_store() -> Any:
    """Return an empty store for the installed SDK, which replays what it kept in order."""
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


def with_events(cell: Cell, hall: Hall, **options: Any) -> ASGIApp:
    """Wrap a stateful server, which keeps its events."""
    return MCPSessionMiddleware(keeping_events(cell, hall), **grouped(**{"keys": KEYS, **options}))


class TwoWorkers:
    """Two workers that share their store and the server's events: the second one has the requests that resume."""

    def __init__(self, cell: Cell, hall: Hall, **options: Any) -> None:
        server = keeping_events(cell, hall)
        self._workers = [MCPSessionMiddleware(server, **grouped(**{"keys": KEYS, **options})) for _ in range(2)]
        self.resumed = anyio.Event()
        self.event_ids: list[bytes] = []  # as the client sent them

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = [value for name, value in scope.get("headers", ()) if name == b"last-event-id"]
        self.event_ids += found

        async def hear(message: Message) -> None:
            await send(message)
            if found and message.get("body"):  # by now the server knows where the answer has to go
                self.resumed.set()

        await self._workers[bool(found)](scope, receive, hear)


def keeping_events(cell: Cell, hall: Hall) -> Any:
    """Return the server alone."""

    async def hold() -> str:
        await hall.enter("hold")
        await count()
        return KEPT

    async def poll(ctx: Any) -> str:
        """Let the client go, and answer when it comes back for the result."""
        await ctx.close_sse_stream()
        await hall.enter("poll")
        return await count()

    kept, is_older = {"event_store": event_store()}, cell.framework == "sdk1"
    mcp = server_class(cell.framework)("small", **(kept if is_older else {}))
    poll.__annotations__ = {"ctx": context_class(cell.framework), "return": str}
    for tool in (hold, poll, count):
        mcp.tool()(tool)
    return http_app(mcp, cell, **({} if is_older else kept))
