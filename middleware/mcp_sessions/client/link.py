"""One connection: the transport's streams on one side, the client's on the other, and our own requests between them.

A task reads the transport and delivers to the client; answers to our own requests stay here. Nothing here knows what a
session is. The transport is never closed here: that is for who opened it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any, Final

import anyio

from . import messages
from .errors import NoAnswer, Refused
from .streams import Delivery, Reading, Writing

Incoming = Callable[[Any, Context | None], Awaitable[Any]]
Outgoing = Callable[[Any], Awaitable[None]]

OURS: Final = "mcp-sessions-"  # how the ids of our own requests begin
GONE: Final = (anyio.BrokenResourceError, anyio.ClosedResourceError)


@dataclass
class _Awaited:
    """A request of our own, and its answer once that is there."""

    arrived: anyio.Event = field(default_factory=anyio.Event)
    message: Any = None


class Link:
    """A transport's stream pair with a client's.

    Args:
        read: The transport's stream of messages from the server.
        write: The transport's stream of messages to the server.
        timeout: Seconds to wait for the answer to a request of our own.
    """

    def __init__(self, read: Any, write: Any, *, timeout: float) -> None:
        self._read = read
        self._write = write
        self._timeout = timeout
        self._deliveries, deliveries = anyio.create_memory_object_stream[Delivery](0)
        self._reading = Reading(deliveries)
        self._awaited: dict[str, _Awaited] = {}
        self._requests = 0
        self._open = True

    def streams(self, outgoing: Outgoing) -> tuple[Reading, Writing]:
        """What the client gets."""
        return self._reading, Writing(outgoing)

    async def pump(self, incoming: Incoming) -> None:
        """Read the transport to its end.

        Args:
            incoming: Called with each item and its context; gives what the client is to have of it, or None.
        """
        try:
            with suppress(*GONE):
                async for item in self._read:
                    await self._take(item, incoming, getattr(self._read, "last_context", None))
        finally:
            self._hang_up()

    async def _take(self, item: Any, incoming: Incoming, context: Context | None) -> None:
        if isinstance(item, Exception):
            await self.deliver(item, context)
        elif not self._settle(messages.body(item)):
            left = await incoming(item, context)
            if left is not None:
                await self.deliver(left, context)

    async def deliver(self, item: Any, context: Context | None) -> None:
        """Give the client something to read, unless it has gone."""
        with suppress(*GONE):
            await self._deliveries.send((context, item))

    async def write(self, item: Any) -> None:
        """Send something to the server."""
        await self._write.send(item)

    async def request(
        self, pattern: Any, method: str, params: Mapping[str, Any], sent: dict[str, str] | None = None
    ) -> dict[str, Any]:
        """Send a request of our own.

        Args:
            pattern: A request of the client, whose envelope ours has, too.
            method: What is asked.
            params: `params` without `_meta`.
            sent: The session that it is about, or None.

        Returns:
            The result.

        Raises:
            Refused: The answer is an error.
            NoAnswer: There is none in time, or the connection is gone.
        """
        message = await self._ask(pattern, method, params, sent)
        if message is None:
            raise NoAnswer(f"{method} was not answered: no answer within {self._timeout} s, or the connection is gone")
        if hasattr(message, "error"):
            raise Refused(method, message.error.code, message.error.message)
        result: dict[str, Any] = message.result
        return result

    async def _ask(
        self, pattern: Any, method: str, params: Mapping[str, Any], sent: dict[str, str] | None
    ) -> Any | None:
        self._requests += 1
        name = f"{OURS}{self._requests}"
        awaited = self._awaited[name] = _Awaited()
        try:
            with anyio.move_on_after(self._timeout if self._open else 0), suppress(*GONE):
                await self._write.send(messages.request(pattern, name, method, params, sent))
                await awaited.arrived.wait()
        finally:
            del self._awaited[name]
        return awaited.message

    def _settle(self, message: Any) -> bool:
        """Whether a message answers a request of our own, be it too late: the client knows nothing of it."""
        if not messages.is_answer(message) or not messages.key(message).startswith(OURS):
            return False
        if (awaited := self._awaited.get(messages.key(message))) is not None:
            awaited.message = message
            awaited.arrived.set()
        return True

    def client_is_gone(self) -> None:
        """Nobody reads any more: whatever waits to be delivered is dropped, so that our own answers get through."""
        self._reading.close()

    def _hang_up(self) -> None:
        self._open = False
        self._deliveries.close()
        for awaited in self._awaited.values():
            awaited.arrived.set()

    async def close(self) -> None:
        """Close every stream."""
        self._deliveries.close()
        self._reading.close()
        await self._write.aclose()
        await self._read.aclose()
