"""No request to a server goes on to another origin, however its HTTP client follows redirects.

Older releases of SDK 1.x follow all of them, with the session id in the header, and for 307 and 308 in the body, too.
Another scheme or port is another origin. A server elsewhere could also create sessions that it knows. Source: RFC 6454.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from importlib import import_module
from typing import Any, Final

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
    sent = http_client.build_request("POST", url).url  # in the form in which the client sends it
    origin, path = _origin_of(sent), _path_of(sent)

    async def check(request: Any) -> None:
        target = _origin_of(request.url)
        if target == origin and _path_of(request.url) == path:
            request.extensions = {**request.extensions, _MARK: origin}
        elif request.extensions.get(_MARK) == origin and target != origin:
            scheme, host, port = target
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


def _origin_of(url: Any) -> tuple[str, str, int | None]:
    return url.scheme, url.raw_host.decode("ascii"), url.port or _PORTS.get(url.scheme)


def _path_of(url: Any) -> bytes:
    path: bytes = url.raw_path
    return path.partition(b"?")[0]
