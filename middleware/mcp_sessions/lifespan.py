"""The server's start and stop, seen as they pass: what runs beside the application begins after it and ends before it.

A hook may need what the application opens at its start, so none of ours runs before that or after the
application was told to stop; the store goes last. An application that does not speak this protocol
returns or raises at once and is served all the same, so only a stop that was asked for stops anything.
Source: ASGI, Lifespan Protocol.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_STOPPED: Final = ("lifespan.shutdown.complete", "lifespan.shutdown.failed")


@dataclass(frozen=True, slots=True)
class Lifespan:
    """One life of the server.

    Args:
        app: The wrapped application.
        started: Called when it has started.
        stopping: Called before it is told to stop.
        stopped: Called when it has stopped, before the server hears of it and ends the event loop.
    """

    app: ASGIApp
    started: Callable[[], None]
    stopping: Callable[[], Awaitable[None]]
    stopped: Callable[[], Awaitable[None]]

    async def run(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand the application its own start and stop, and do ours around them."""

        async def hear() -> Message:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                await self.stopping()
            return message

        async def say(message: Message) -> None:
            if message["type"] in _STOPPED:
                await self.stopped()
            await send(message)
            if message["type"] == "lifespan.startup.complete":
                self.started()

        await self.app(scope, hear, say)
