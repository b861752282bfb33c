"""A transport's pair of streams, and the pair that the client has in its place, with our own requests between them.

Source: MCP 2026-07-28; the SDK's stream protocols.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from contextvars import Context
from typing import Any, Final, cast

import anyio
from anyio.abc import ObjectReceiveStream, ObjectSendStream
from anyio.streams.memory import MemoryObjectReceiveStream

from . import messages
from .session import Metadata, NoAnswer, Refused

OWN_ID: Final = "mcp-sessions-"  # how the ids of our own requests begin
GONE: Final = (anyio.BrokenResourceError, anyio.ClosedResourceError)


class Connection:
    """A transport's pair of streams, and the client's pair in its place, with our own requests between them.

    The transport stays open when the client closes its pair: sessions are still to be ended then.

    Args:
        read: The transport's stream of messages from the server.
        write: The transport's stream of messages to the server.
        timeout: Seconds to wait for the answer to a request of our own.
    """

    def __init__(self, read: Any, write: Any, *, timeout: float) -> None:
        self.write = write
        self._read = read
        self._timeout = timeout
        self._deliveries, deliveries = anyio.create_memory_object_stream[tuple[Context | None, Any]](0)
        self.client_reads = ClientReadStream(deliveries)
        self._answered: dict[str, anyio.Event] = {}
        self._answers: dict[str, Any] = {}
        self._count = 0
        self._open = True

    async def pump(self, incoming: Callable[[Any, Context | None], Awaitable[Any]]) -> None:
        """Read the transport to its end, and deliver what `incoming` returns for each message and its context."""
        try:
            with suppress(*GONE):
                async for item in self._read:
                    context = getattr(self._read, "last_context", None)
                    if isinstance(item, Exception):
                        await self.deliver(item, context)
                    elif not self._answers_own(messages.body(item)):
                        await self.deliver(await incoming(item, context), context)
        finally:
            self._open = False
            self._deliveries.close()
            for answered in self._answered.values():
                answered.set()

    def _answers_own(self, message: Any) -> bool:
        """Whether a message answers a request of our own; one that comes too late is not the client's either."""
        key = messages.key(message) if messages.is_answer(message) else ""
        if key in self._answered:
            self._answers[key] = message
            self._answered[key].set()
        return key.startswith(OWN_ID)

    async def deliver(self, item: Any, context: Context | None) -> None:
        """Give the client something to read, if there is anything and the client has not gone."""
        if item is not None:
            with suppress(*GONE):
                await self._deliveries.send((context, item))

    async def request(
        self, pattern: Any, method: str, params: Mapping[str, Any], metadata: Metadata | None = None
    ) -> dict[str, Any]:
        """Send a request of our own with the envelope of `pattern`, one of the client's, and return its result.

        Raises:
            Refused: The answer is an error.
            NoAnswer: There is none in time, or the connection is gone.
        """
        self._count += 1
        key = f"{OWN_ID}{self._count}"
        answered = self._answered[key] = anyio.Event()
        session = None if metadata is None else metadata.for_request()
        try:
            with anyio.move_on_after(self._timeout if self._open else 0), suppress(*GONE):
                await self.write.send(messages.request(pattern, key, method, params, session))
                await answered.wait()
        finally:
            del self._answered[key]
            answer = self._answers.pop(key, None)
        if answer is None:
            raise NoAnswer(f"{method} was not answered: no answer within {self._timeout} s, or the connection is gone")
        if hasattr(answer, "error"):
            raise Refused(method, answer.error.code, answer.error.message)
        return cast("dict[str, Any]", answer.result)

    async def close(self) -> None:
        """Close every stream."""
        self._deliveries.close()
        await self.client_reads.aclose()
        await self.write.aclose()
        await self._read.aclose()


class ClientReadStream(ObjectReceiveStream[Any]):
    """What the client receives from.

    The context in which the transport received the last message is kept, as callbacks run in it.
    """

    def __init__(self, deliveries: MemoryObjectReceiveStream[tuple[Context | None, Any]]) -> None:
        self.last_context: Context | None = None
        self._deliveries = deliveries

    async def receive(self) -> Any:
        self.last_context, item = await self._deliveries.receive()
        return item

    async def aclose(self) -> None:
        self._deliveries.close()


class ClientWriteStream(ObjectSendStream[Any]):
    """What the client sends to. The session is chosen in the task that sends."""

    def __init__(self, send: Callable[[Any], Awaitable[None]]) -> None:
        self._send = send
        self._closed = False

    async def send(self, item: Any) -> None:
        if self._closed:
            raise anyio.ClosedResourceError
        await self._send(item)

    async def aclose(self) -> None:
        self._closed = True
