"""The way to a server, and the streams that the client gets in place of the transport's own.

The SDK is imported where its transport is made.
Sources: MCP 2026-07-28; the transports of the official SDK 1.x and 2.x.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from contextvars import Context
from functools import partial
from importlib import import_module
from typing import Any, Final
from urllib.parse import urlsplit

import anyio
from anyio.abc import ObjectReceiveStream, ObjectSendStream
from anyio.streams.memory import MemoryObjectReceiveStream

from .._errors import ConfigurationError
from ._session import ClientError

Transport = AbstractAsyncContextManager[Any]
Connect = Callable[[], Transport]

ACCEPTED: Final = (
    'with_sessions takes the URL of a server, such as "http://127.0.0.1:8000/mcp", a transport such as '
    "streamable_http_client(url), or a function without arguments that returns a new one"
)


def connector(source: Any, http_client: Any) -> Connect:
    """Return the function that makes a transport for each connection; see `with_sessions`."""
    if isinstance(source, str):
        sdk = import_module("mcp.client.streamable_http")
        return partial(sdk.streamable_http_client, source, http_client=http_client)
    if http_client is not None:
        raise ConfigurationError("http_client= goes with a URL; a transport has its own")
    if isinstance(source, AbstractAsyncContextManager) and not hasattr(source, "call_tool"):  # not a client
        return _once(source)  # those of contextlib are callable, too
    if not callable(source):
        raise ConfigurationError(f"{ACCEPTED}; not {source!r:.200}")
    return source  # type: ignore[no-any-return]  # what it returns is entered


def _once(transport: Transport) -> Connect:
    unused = [transport]

    def connect() -> Transport:
        if not unused:
            raise ClientError("this transport was used already; a function can return one for each connection")
        return unused.pop()

    return connect


def server_of(url: str) -> str:
    """Return the URL by which sessions are stored, without a password; raise `ConfigurationError` if it is not one."""
    with suppress(ValueError):  # not a number as the port, or half an address
        parts = urlsplit(url)
        if parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0:
            user, at, host = parts.netloc.rpartition("@")
            return parts._replace(netloc=f"{user.partition(':')[0]}{at}{host}", fragment="").geturl()
    raise ConfigurationError(f"{ACCEPTED}; {url!r} is not the URL of an HTTP server")


class ClientReadStream(ObjectReceiveStream[Any]):
    """What the client receives from, with the context in which the transport received: callbacks run in it."""

    def __init__(self, deliveries: MemoryObjectReceiveStream[tuple[Context | None, Any]]) -> None:
        self.last_context: Context | None = None
        self._deliveries = deliveries

    async def receive(self) -> Any:
        self.last_context, item = await self._deliveries.receive()
        return item

    async def aclose(self) -> None:
        self._deliveries.close()


class ClientWriteStream(ObjectSendStream[Any]):
    """What the client sends to, in the task that chose the session. Closing it leaves the transport open."""

    def __init__(self, send: Callable[[Any], Awaitable[None]]) -> None:
        self._send = send
        self._closed = False

    async def send(self, item: Any) -> None:
        if self._closed:
            raise anyio.ClosedResourceError
        await self._send(item)

    async def aclose(self) -> None:
        self._closed = True
