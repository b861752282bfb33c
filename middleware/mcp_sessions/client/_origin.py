"""No request to a server goes on to another origin, however its HTTP client follows redirects.

Older releases of SDK 1.x follow all of them, with the session id in the header, and for 307 and 308 in the body, too.
Another scheme or port is another origin. A server elsewhere could also create sessions that it knows. Source: RFC 6454.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from importlib import import_module
from typing import Any, Final
from urllib.parse import urlsplit

from ._session import ClientError

_MARK: Final = "mcp_sessions.origin"  # among the extensions of a request, which those after a redirect get, too
_PORTS: Final = {"http": 80, "https": 443}


@asynccontextmanager
async def transport_within_origin(url: str, http_client: Any) -> AsyncIterator[Any]:
    """Connect the SDK's transport to a URL, by this client or one as the SDK makes, within the URL's origin."""
    sdk = import_module("mcp.client.streamable_http")
    async with AsyncExitStack() as stack:
        client = http_client
        if client is None:
            client = await stack.enter_async_context(sdk.create_mcp_http_client())
        stack.enter_context(_within_origin(client, url))
        yield await stack.enter_async_context(sdk.streamable_http_client(url, http_client=client))


@contextmanager
def _within_origin(http_client: Any, url: str) -> Iterator[None]:
    """Let a client send no request that was meant for this URL to another origin."""
    origin, path = origin_of(url), urlsplit(url).path or "/"

    async def check(request: Any) -> None:
        target = str(request.url)
        if origin_of(target) == origin and (urlsplit(target).path or "/") == path:
            request.extensions = {**request.extensions, _MARK: origin}
        elif request.extensions.get(_MARK) == origin and origin_of(target) != origin:
            scheme, host, port = origin_of(target)
            raise ClientError(
                f"the server redirects to another origin, {scheme}://{host}:{port}, and nothing was sent there; "
                "if it is trusted, give with_sessions its URL"
            )

    http_client.event_hooks = {**(hooks := http_client.event_hooks), "request": [*hooks["request"], check]}
    try:
        yield
    finally:
        hooks = http_client.event_hooks
        http_client.event_hooks = {**hooks, "request": [hook for hook in hooks["request"] if hook is not check]}


def origin_of(url: str) -> tuple[str, str, int | None]:
    """Return the scheme, host and port of a URL."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or _PORTS.get(parts.scheme)
