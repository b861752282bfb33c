"""Whose page sent a request: a browser sends cookies, and authenticates by itself, for every page.

Only what says that the page is the endpoint's own counts. Programs that are no browsers say nothing.
Sources: RFC 6454, section 7 (`Origin`); RFC 9110, section 4.2.3 (default ports); W3C Fetch Metadata.
"""

from __future__ import annotations

import re
from typing import Final

from .headers import RequestHeaders

_OWN_SITES: Final = (["same-origin"], ["none"])  # "none": the user asked for it, as by a bookmark
_PORTS: Final = {"http": "80", "https": "443"}
_AUTHORITY: Final = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._~%-]+)(?::([1-9][0-9]{0,4}))?", re.ASCII)

Origin = tuple[str, str, str]
"""Scheme, host and port."""


def is_own_page(headers: RequestHeaders, scheme: str) -> bool:
    """Whether a request comes from a page of the server's origin, or from a program that is no browser.

    Args:
        headers: The headers of the request, whose `Host` is the origin's host and port.
        scheme: `"http"` or `"https"`, as the client sees it.
    """
    sites, origins = headers.all(b"sec-fetch-site"), headers.all(b"origin")
    if sites and sites not in _OWN_SITES:
        return False
    if not origins:
        return True
    hosts = headers.all(b"host")
    if len(origins) != 1 or len(hosts) != 1:
        return False
    of_page, _, authority = origins[0].lower().partition("://")
    page = _origin(of_page, authority)
    return page is not None and page == _origin(scheme, hosts[0].lower())


def _origin(scheme: str, authority: str) -> Origin | None:
    found = _AUTHORITY.fullmatch(authority)
    return None if found is None or scheme not in _PORTS else (scheme, found[1], found[2] or _PORTS[scheme])
