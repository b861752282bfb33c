"""The ways to a server: its URL, a transport of the SDK's or of FastMCP's, or a function that makes one.

The SDK and FastMCP are imported where one of theirs is made. A server's identity in a jar is read from its URL.
Source: RFC 3986 and RFC 6454; the transports of the official SDK 1.x and 2.x, and of FastMCP 3 and 4.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from importlib import import_module
from inspect import signature
from typing import Any, Final
from urllib.parse import SplitResult, quote, unquote, urlsplit

from ..errors import ConfigurationError

Transport = AbstractAsyncContextManager[Any]

ACCEPTED: Final = (
    'with_sessions takes the URL of a server, such as "http://127.0.0.1:8000/mcp", a transport such as '
    "streamable_http_client(url), a function without arguments that returns a new one, or FastMCP's "
    "StreamableHttpTransport"
)
_PORTS: Final = {"http": 80, "https": 443}
_QUERY_SAFE: Final = "!$%&()*+,-./:;=?@[\\]^_`{|}~"  # what URLs leave as it is in a query


def connector(
    source: Any, *, headers: Mapping[str, str] | None, auth: Any, http_client: Any
) -> Transport | Callable[[], Transport]:
    """Return a transport, or a function that makes one for each connection. The arguments are those of `with_sessions`.

    Raises:
        ConfigurationError: One of the arguments is not of those that are accepted.
    """
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
            raise ConfigurationError("headers= and auth= do not go with http_client=; give them to the HTTP client")
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
    """Return what makes the streams of a transport of FastMCP's, which itself gives out no streams."""
    if not isinstance(transport, import_module("fastmcp.client.transports").StreamableHttpTransport):
        raise ConfigurationError(f"{ACCEPTED}; not {transport!r:.200}")
    options = {"headers": dict(transport.headers), "auth": transport.auth}
    if transport.httpx_client_factory is not None:
        return partial(
            _connected, transport.url, partial(transport.httpx_client_factory, **options, follow_redirects=True)
        )
    verifying = getattr(transport, "_make_verify_factory", lambda: None)()  # what verify= asks for
    factory = verifying or import_module("mcp.shared._httpx_utils").create_mcp_http_client
    return partial(_connected, transport.url, partial(factory, **options))


@asynccontextmanager
async def _connected(url: str, make_client: Callable[[], Any] | None, client: Any = None) -> AsyncIterator[Any]:
    """Connect with a client made for this connection, with that of the program, or with the SDK's own."""
    connect = import_module("mcp.client.streamable_http").streamable_http_client
    if make_client is None:
        async with connect(url, http_client=client) as streams:
            yield streams
    else:
        async with make_client() as made, connect(url, http_client=made) as streams:
            yield streams


# --- the server's URL ---


def _split(url: str) -> SplitResult | None:
    """Return the parts of an HTTP URL, or None for anything else."""
    with suppress(ValueError):  # no number as the port, or half an address
        parts = urlsplit(url)
        if parts.scheme in _PORTS and parts.hostname and parts.port != 0:
            return parts
    return None


def server_of(url: str) -> str:
    """Return a server's origin, path and query in their one spelling.

    Raises:
        ConfigurationError: It is not an HTTP URL.
    """
    if (parts := _split(url)) is None:
        raise ConfigurationError(
            f"a jar keeps sessions by the server's URL, and {url!r} is not an HTTP URL; set server="
        )
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    query = f"?{quote(parts.query, safe=_QUERY_SAFE)}" if parts.query else ""
    return f"{parts.scheme}://{host}:{parts.port or _PORTS[parts.scheme]}{parts.path or '/'}{query}"


def user_of(url: str) -> str:
    """Return the user that a URL names, or `""`."""
    return unquote(urlsplit(url).username or "")


def url_of(transport: Any) -> str | None:
    """Return the URL that a transport was made with, or None where it does not show."""
    shown = getattr(transport, "url", None)
    given = (*getattr(transport, "args", ()), *getattr(transport, "kwds", {}).values())
    texts = (one for one in (shown, *given) if isinstance(one, str))
    return next((text for text in texts if text.lower().startswith(("http:", "https:"))), None)
