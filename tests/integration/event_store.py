"""An event store, as either SDK wants one: everything is kept, and told again in order."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def event_store() -> Any:
    """A new one, empty, for the SDK that is installed."""
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
