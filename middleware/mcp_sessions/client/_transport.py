"""The way to a server: its transport, made or taken over, and the streams that the client has in place of its own.

The SDK and FastMCP are imported where one of theirs is made. A server's identity in a jar is read from its URL.
Sources: RFC 3986, RFC 6454, MCP 2026-07-28; the transports of the official SDK 1.x and 2.x, and of FastMCP 3 and 4.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from contextvars import Context
from functools import partial
from importlib import import_module
from inspect import signature
from typing import Any, Final, cast
from urllib.parse import SplitResult, quote, urlsplit

import anyio
from anyio.abc import ObjectReceiveStream, ObjectSendStream
from anyio.streams.memory import MemoryObjectReceiveStream

from .._errors import ConfigurationError
from . import _messages as messages
from ._session import Metadata, NoAnswer, Refused

Transport = AbstractAsyncContextManager[Any]

ACCEPTED: Final = (
    'with_sessions takes the URL of a server, such as "http://127.0.0.1:8000/mcp", a transport such as '
    "streamable_http_client(url), a function without arguments that returns a new one, or FastMCP's "
    "StreamableHttpTransport"
)
OWN_ID: Final = "mcp-sessions-"  # how the ids of our own requests begin
GONE: Final = (anyio.BrokenResourceError, anyio.ClosedResourceError)

_PORTS: Final = {"http": 80, "https": 443}
_QUERY_SAFE: Final = "!$%&()*+,-./:;=?@[\\]^_`{|}~"  # what URLs leave as it is in a query


def connector(
    source: Any, *, headers: Mapping[str, str] | None, auth: Any, http_client: Any
) -> Transport | Callable[[], Transport]:
    """Return a transport, or a function that makes one for each connection; see `with_sessions`."""
    if isinstance(source, str):
        if _split(source) is None:
            raise ConfigurationError(f"{ACCEPTED}; {source!r} is not the URL of an HTTP server")
        return _to_url(source, headers, auth, http_client)
    if not (headers is None and auth is None and http_client is None):
        raise ConfigurationError("headers=, auth= and http_client= go with a URL; a transport has its own")
    if hasattr(source, "connect_session"):
        return _of_fastmcp(source)
    is_client = hasattr(source, "call_tool")  # clients are context managers, too, but give no streams
    if is_client or not (isinstance(source, AbstractAsyncContextManager) or _needs_nothing(source)):
        raise ConfigurationError(f"{ACCEPTED}; not {source!r:.200}")
    return source  # type: ignore[no-any-return]  # checked above


def _needs_nothing(function: Any) -> bool:
    try:
        signature(function).bind()
    except (TypeError, ValueError):  # not callable, or not without arguments
        return False
    return True


def _to_url(url: str, headers: Any, auth: Any, http_client: Any) -> Callable[[], Transport]:
    if headers is None and auth is None and http_client is None:
        return partial(_connected, url, None)
    shared = import_module("mcp.shared._httpx_utils")
    http = getattr(shared, "httpx2", None) or shared.httpx  # SDK 2.x has moved on to httpx2
    if http_client is not None:
        if headers is not None or auth is not None:
            raise ConfigurationError("headers= and auth= conflict with http_client=; give them to the HTTP client")
        if not isinstance(http_client, http.AsyncClient):
            raise ConfigurationError(f"http_client= takes an {http.__name__}.AsyncClient, as the installed SDK does")
        return partial(_connected, url, None, http_client)
    if not isinstance(headers, Mapping | None):
        raise ConfigurationError("headers= takes a mapping of names to values")
    if not isinstance(auth, http.Auth | None):
        raise ConfigurationError(
            f'auth= takes an {http.__name__}.Auth; a token goes into headers={{"Authorization": "Bearer ..."}}'
        )
    return partial(_connected, url, partial(shared.create_mcp_http_client, headers=dict(headers or {}), auth=auth))


def _of_fastmcp(transport: Any) -> Callable[[], Transport]:
    if not isinstance(transport, import_module("fastmcp.client.transports").StreamableHttpTransport):
        raise ConfigurationError(f"{ACCEPTED}; not {transport!r:.200}")
    options = {"headers": dict(transport.headers), "auth": transport.auth}
    factory = transport.httpx_client_factory
    if factory is not None:
        options["follow_redirects"] = True
    else:
        verifying = getattr(transport, "_make_verify_factory", lambda: None)()  # what verify= asks for
        factory = verifying or import_module("mcp.shared._httpx_utils").create_mcp_http_client
    return partial(_connected, transport.url, partial(factory, **options))


@asynccontextmanager
async def _connected(url: str, make_client: Callable[[], Any] | None, client: Any = None) -> AsyncIterator[Any]:
    connect = import_module("mcp.client.streamable_http").streamable_http_client
    if make_client is None:
        async with connect(url, http_client=client) as streams:
            yield streams
    else:
        async with make_client() as made, connect(url, http_client=made) as streams:
            yield streams


# --- the server's URL ---


def _split(url: str) -> SplitResult | None:
    with suppress(ValueError):  # no number as the port, or half an address
        parts = urlsplit(url)
        if parts.scheme in _PORTS and parts.hostname and parts.port != 0:
            return parts
    return None


def server_of(url: str) -> str:
    """Return a server's origin, path and query in their one spelling, or raise `ConfigurationError`: no HTTP URL."""
    if (parts := _split(url)) is None:
        raise ConfigurationError(
            f"a jar keeps sessions by the server's URL, and {url!r} is not an HTTP URL; set server="
        )
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    query = f"?{quote(parts.query, safe=_QUERY_SAFE)}" if parts.query else ""
    return f"{parts.scheme}://{host}:{parts.port or _PORTS[parts.scheme]}{parts.path or '/'}{query}"


def url_of(transport: Any) -> str | None:
    shown = getattr(transport, "url", None)
    given = (*getattr(transport, "args", ()), *getattr(transport, "kwds", {}).values())
    texts = (one for one in (shown, *given) if isinstance(one, str))
    return next((text for text in texts if text.lower().startswith(("http:", "https:"))), None)


# --- the streams ---


class Connection:
    """A transport's pair of streams, and the client's pair in its place, with our own requests between them.

    The transport stays open when the client closes its pair: sessions are still to be ended then. An answer to a
    request of our own is awaited for `timeout` seconds.
    """

    def __init__(self, read: Any, write: Any, *, timeout: float) -> None:
        self.write = write
        self._read = read
        self._timeout = timeout
        self._deliveries, deliveries = anyio.create_memory_object_stream[tuple[Context | None, Any]](0)
        self.client_reads: ClientReadStream = ClientReadStream(deliveries)
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

        Raises `Refused` for an error, and `NoAnswer` where there is no answer in time, or the connection is gone.
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
