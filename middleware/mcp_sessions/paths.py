"""Where a request stands to the MCP endpoint: at it, below it, or elsewhere.

What decides is the path that a router inside of us would match: `scope["path"]`, decoded, without
the `root_path` that mounts and proxies put in front. Everything below the endpoint is looked at
too, since a mounted server may answer there (`Mount("/mcp", app)`), and a request that the server
sees and we do not would walk around every policy.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from starlette.types import Scope


class Place(Enum):
    """Where a request stands to the MCP endpoint."""

    ENDPOINT = "at the endpoint: every POST is MCP"
    BELOW = "below it, or any path where none is configured: a JSON POST may be MCP"
    ELSEWHERE = "none of our business"


# Found once, for the reason that `jsonrpc` gives.
ENDPOINT: Final = Place.ENDPOINT
BELOW: Final = Place.BELOW
ELSEWHERE: Final = Place.ELSEWHERE


def place(scope: Scope, endpoint: str | None) -> Place:
    """Where a request stands.

    Args:
        scope: The HTTP scope.
        endpoint: The configured path without a trailing slash, or None for every path.
    """
    if endpoint is None:
        return BELOW
    path = route_path(scope) if scope.get("root_path") else scope["path"]
    if path == endpoint or path.rstrip("/") == endpoint:
        return ENDPOINT
    return BELOW if path.startswith(endpoint + "/") else ELSEWHERE


def route_path(scope: Scope) -> str:
    """The path below `root_path`, to the letter as Starlette's routing takes it."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    if path == root:
        return ""
    below = path.startswith(root) and path[len(root)] == "/"
    return path[len(root) :] if root and below else path
