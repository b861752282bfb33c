"""The pair of streams that the client gets in place of the transport's own.

What the client sends is handed over in the task that sends it, so that the session chosen there is the one that counts.
What it receives keeps the context that the transport noted with it. Closing them does not close the transport: sessions
are still to be ended when the client has gone.
Source: the stream protocols of the official SDK.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextvars import Context
from types import TracebackType
from typing import TYPE_CHECKING, Any

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream

if TYPE_CHECKING:
    from typing_extensions import Self

Delivery = tuple[Context | None, Any]


class _Stream(ABC):
    """What both have in common."""

    @abstractmethod
    def close(self) -> None:
        """Use it no more."""

    async def aclose(self) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Reading(_Stream):
    """What the client receives from.

    Attributes:
        last_context: The context in which the transport received the last message, or None where it notes none.
    """

    def __init__(self, deliveries: MemoryObjectReceiveStream[Delivery]) -> None:
        self.last_context: Context | None = None
        self._deliveries = deliveries

    async def receive(self) -> Any:
        self.last_context, item = await self._deliveries.receive()
        return item

    def close(self) -> None:
        self._deliveries.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None


class Writing(_Stream):
    """What the client sends to."""

    def __init__(self, send: Callable[[Any], Awaitable[None]]) -> None:
        self._send = send
        self._closed = False

    async def send(self, item: Any) -> None:
        if self._closed:
            raise anyio.ClosedResourceError
        await self._send(item)

    def close(self) -> None:
        self._closed = True
