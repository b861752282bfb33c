"""Errors of the store as the client of a tool gets them.

A tool whose write of `session.data` fails is answered with a tool error. SDK 2.x shows its client the text of its own
`ToolError` alone and takes any other error for a crash, so `StoreUnavailable` is one of them there. The SDK 1.x and
FastMCP show every text.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any, Final, ParamSpec, TypeVar

from .._errors import StoreUnavailable

P = ParamSpec("P")
T = TypeVar("T")
_SDK: Final = "mcp.server.mcpserver.exceptions"  # a framework that was never imported runs no tool


async def shown_by_tools(ask: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """Ask the store for a handler, whose client gets the text of `StoreUnavailable` if the store does not answer."""
    try:
        return await ask(*args, **kwargs)
    except StoreUnavailable as error:
        raise as_tool_error(error) from None


def as_tool_error(error: StoreUnavailable) -> StoreUnavailable:
    """Return the error as one whose text the SDK shows to the client of a tool."""
    own: Any = type(error)
    of_sdk: Any = getattr(sys.modules.get(_SDK), "ToolError", None)
    if of_sdk is not None and not isinstance(error, of_sdk):
        error.__class__ = _both(own, of_sdk)
    return error


@cache
def _both(kind: Any, of_sdk: Any) -> Any:
    return type(kind.__name__, (kind, of_sdk), {"__module__": kind.__module__})
