"""What proxies say of a request in headers of their own: the prefix that they strip from its path, its host, its TLS.

Nothing here grants anything: it decides for which path the cookie of a session is, and what the log says. Still, a
stripped prefix counts only if the server trusts its proxy, which shows in the client's address: servers take it from
the proxy's header then, and a port cannot be known.
Sources: MDN, `X-Forwarded-*`; Traefik's StripPrefix and Spring, `X-Forwarded-Prefix`; Kong, `X-Forwarded-Path`; Envoy,
`X-Envoy-Original-Path`; ingress-nginx, `X-Original-URI`.
"""

from __future__ import annotations

import re
from typing import Any, Final

from .headers import RequestHeaders

_PREFIX: Final = b"x-forwarded-prefix"
_PATHS: Final = (b"x-forwarded-path", b"x-forwarded-uri", b"x-envoy-original-path", b"x-original-uri")
"""Headers with the path that the client asked."""
SHOWS_PATH: Final = (_PREFIX, *_PATHS)
"""Headers by which a proxy may show that it strips a prefix."""
_SAFE: Final = re.compile(r"(?:/[A-Za-z0-9._~%:@!$&'()*+=-]+)*", re.ASCII)
_PORT: Final = re.compile(r".*:([0-9]{1,5})", re.ASCII)
_USUAL_PORTS: Final = frozenset({"80", "443"})


def stripped_prefix(headers: RequestHeaders) -> str:
    """Return the prefix that proxies say to have stripped from the path, from the outermost on; empty without one.

    It begins with a slash, ends without, and is percent-encoded. One that could not stand in a path is ignored.
    """
    parts = [part.strip().rstrip("/") for value in headers.all(_PREFIX) for part in value.split(",")]
    prefix = "".join(parts)
    return prefix if _SAFE.fullmatch(prefix) else ""


def trusts_proxy(headers: RequestHeaders, client: Any) -> bool:
    """Return whether the server has taken the client's address from a proxy's header.

    Args:
        headers: The headers of the request.
        client: The address and port of the client as the server sees it, or None.
    """
    forwarded = ",".join(headers.all(b"x-forwarded-for")).split(",")
    return client is not None and client[1] == 0 and client[0] in {address.strip() for address in forwarded}


def strips_prefix(headers: RequestHeaders, path: str) -> bool:
    """Return whether a proxy shows that it strips a prefix from the path of the client.

    Args:
        headers: The headers of the request.
        path: The endpoint as its clients see it, as far as the server knows.
    """
    prefix = stripped_prefix(headers)
    if prefix and not path.startswith(f"{prefix}/"):
        return True
    asked = (headers.first(name) for name in _PATHS)
    paths = (one.partition("?")[0].rstrip("/") for one in asked if one is not None)
    return any(one != path and one.endswith(path) for one in paths)


def hides_tls(headers: RequestHeaders, scheme: str) -> bool:
    """Return whether TLS ends at a proxy that the server does not trust, so that the request seems to be plain HTTP."""
    protocols = ",".join(headers.all(b"x-forwarded-proto")).split(",")
    return scheme == "http" and protocols[0].strip() == "https"


def port_of(headers: RequestHeaders) -> str:
    """Return the port of the server as its client writes it; empty for the usual ones."""
    host = (headers.first(b"x-forwarded-host") or headers.first(b"host") or "").partition(",")[0].strip()
    found = _PORT.fullmatch(host)
    return "" if found is None or found[1] in _USUAL_PORTS else found[1]
