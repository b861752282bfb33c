"""The server's start and stop: what runs beside the application begins after it and ends before it.

A hook may need what the application opens at its start, so none of ours runs before that or after the
application was asked to stop; the store opens first and closes last. An application that does not speak this protocol
returns or raises at once and is served all the same, so only a stop that was asked for stops anything. Inside of a
route no start is seen: there the router that the server starts is made to tell.
Source: ASGI, Lifespan Protocol.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.types import Message as ASGIMessage

from ..errors import StoreUnavailable
from ..stores.base import Store
from .lifecycle import Sweeper

Context = Callable[[Any], AbstractAsyncContextManager[Any]]
"""What a router does around its life, as Starlette writes it: given the application, what to enter and to leave."""

_STOPPED: Final = ("lifespan.shutdown.complete", "lifespan.shutdown.failed")
_log: Final = logging.getLogger("mcp_sessions")


class Services:
    """What lives beside an application: its store is open, and where sessions are tracked ended ones are swept.

    Args:
        store: The store.
        closes: Whether the store is ours to close; one that was given as an object is closed by who made it.
        sweeper: What sweeps, or None.
    """

    def __init__(self, store: Store, sweeper: Sweeper | None, *, closes: bool) -> None:
        self._store = store
        self._sweeper = sweeper
        self._closes = closes
        self._active = 0

    async def open(self) -> None:
        """Open the store before the application starts. One that does not answer yet does not keep it from starting.

        Raises:
            ConfigurationError: It is set up wrongly; the message says the remedy.
        """
        try:
            await self._store.open()
        except StoreUnavailable as error:
            _log.warning("the session store does not answer (%s); requests with a session wait for it", error.reason)

    def started(self) -> None:
        """When the application has started, or at the first request where no start is seen."""
        if self._sweeper is not None:
            self._sweeper.start()

    async def stopping(self) -> None:
        """Before the application stops."""
        if self._sweeper is not None:
            await self._sweeper.stop()

    async def stopped(self) -> None:
        """When the application has stopped, while the event loop still runs."""
        if self._closes:
            try:
                await self._store.close()
            except StoreUnavailable as error:
                _log.warning("the session store was not closed (%s)", error.reason)

    @asynccontextmanager
    async def around(self, context: Context, app: object) -> AsyncIterator[Any]:
        """A router's life with ours around it. Of several at once, as of an app that is mounted twice, it is the last
        that ends ours.

        Args:
            context: The router's own.
            app: The application, which the router's own is given.

        Raises:
            ConfigurationError: The store is set up wrongly; the message says the remedy.
        """
        await self.open()
        self._active += 1
        try:
            async with context(app) as state:
                self.started()
                try:
                    yield state
                finally:
                    if self._active == 1:
                        await self.stopping()
        finally:
            self._active -= 1
            if self._active == 0:
                await self.stopped()


class Lifespan(msgspec.Struct, frozen=True):
    """One life of the server.

    Args:
        app: The wrapped application.
        services: What lives beside it.
    """

    app: ASGIApp
    services: Services

    async def run(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand the application its own start and stop, and do ours around them. The store is open by then."""

        async def hear() -> ASGIMessage:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                await self.services.stopping()
            return message

        async def say(message: ASGIMessage) -> None:
            if message["type"] in _STOPPED:
                await self.services.stopped()
            await send(message)
            if message["type"] == "lifespan.startup.complete":
                self.services.started()

        await self.app(scope, hear, say)
