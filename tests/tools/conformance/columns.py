"""The columns of the comparison: the same server bare, within the middleware, and used by clients with sessions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from apps import grouped
from starlette.types import ASGIApp

from integration.wire import Client
from mcp_sessions import MCPSessionMiddleware

from .carrying import Carrying
from .server import Everything

KEYS: Final = "a secret of the conformance run, at least 32 bytes long"
Column = Callable[[], Awaitable[ASGIApp]]

ECHOED: Final = "a session in every request"


async def bare() -> ASGIApp:
    """Make the server as the SDK does."""
    return Everything().app()


async def within(**options: Any) -> ASGIApp:
    """Wrap the server in the middleware."""
    return MCPSessionMiddleware(await bare(), keys=KEYS, **grouped(**options))


async def carried() -> ASGIApp:
    """Wrap the server so that every request carries a session."""
    maker = Client(await within(admission="own"))  # any worker may mint it
    return Carrying(await within(require="always"), (await maker.create()).sent())


async def bridged() -> ASGIApp:
    """Put the server behind the bridge: clients see our transport ids, with the server's own sealed inside."""
    return await within(bridge=True)


COLUMNS: Final[Mapping[str, Column]] = {
    "bare": bare,
    "with the middleware": within,
    ECHOED: carried,
    "behind the bridge": bridged,
}
