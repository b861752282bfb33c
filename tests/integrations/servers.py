"""Small servers with bearer tokens, on every framework that is installed, with the middleware at every good place.

Ann and Bob use the same client, Ann also uses another; one of Ann's tokens is past its time.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import product
from typing import Any, Final

import anyio
from apps import grouped
from environments import INSTALLED
from packaging.version import Version
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Scope

from integration.wire import Client, lifespan
from mcp_sessions import MCPSessionMiddleware, add_sessions, current_session

KEYS: Final = "a secret of the bearer tests, at least 32 bytes long"
DEADLINE: Final = 60  # seconds after which a test that hangs fails
HOSTS: Final = ["127.0.0.1:8000"]

USERS: Final[dict[str, dict[str, Any]]] = {
    "ann": {"client_id": "desk", "sub": "ann"},
    "bob": {"client_id": "desk", "sub": "bob"},
    "ann-elsewhere": {"client_id": "phone", "sub": "ann"},
    "late": {"client_id": "desk", "sub": "ann", "expires_at": int(time.time()) - 60},
}
TOKENS: Final = {token: {"scopes": [], **user} for token, user in USERS.items()}

MCP: Final = Version(INSTALLED["mcp"]).major
FASTMCP: Final = Version(INSTALLED["fastmcp"]).major


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def principal(scope: Scope) -> str | None:
    """The principal, as a deployment whose guards stand outside may name it: here, the token is the name."""
    value = dict(scope["headers"]).get(b"authorization", b"").decode()
    user = USERS.get(value.removeprefix("Bearer "))
    return None if user is None else f"{user['client_id']}/{user['sub']}"


async def whoami() -> str:
    session = current_session()
    return "nobody" if session is None else session.ref


class Verifier:
    """The tokens above, for the official SDK. That one is late is left to the SDK to find."""

    async def verify_token(self, token: str) -> Any:
        user = TOKENS.get(token)
        access_token = import_module("mcp.server.auth.provider").AccessToken
        return user and access_token(
            token=token, client_id=user["client_id"], scopes=[], subject=user["sub"], expires_at=user.get("expires_at")
        )


def sdk(*, authenticated: bool, stateful: bool, middleware: list[Any]) -> Any:
    """The small server on the official SDK."""
    assert not middleware, "the SDK takes none"
    settings = import_module("mcp.server.auth.settings").AuthSettings
    auth = {"auth": settings(issuer_url="https://auth.example", resource_server_url=None), "token_verifier": Verifier()}
    modes = {"stateless_http": not stateful}
    if MCP == 1:
        server = import_module("mcp.server.fastmcp").FastMCP("s", **modes, **(auth if authenticated else {}))
        modes = {}
    else:
        server = import_module("mcp.server.mcpserver").MCPServer("s", **(auth if authenticated else {}))
    server.tool()(whoami)
    return server.streamable_http_app(**modes)


def _fastmcp(*, authenticated: bool, stateful: bool, middleware: list[Any]) -> Any:
    verifier = import_module("fastmcp.server.auth.providers.jwt").StaticTokenVerifier
    server = import_module("fastmcp").FastMCP("s", auth=verifier(TOKENS) if authenticated else None)
    server.tool()(whoami)
    return server.http_app(
        stateless_http=not stateful, middleware=middleware, host_origin_protection=True, allowed_hosts=HOSTS
    )


def _add_sessions(make: Callable[..., Any], **options: Any) -> ASGIApp:
    app: ASGIApp = add_sessions(make(middleware=[]), keys=KEYS, **grouped(**options))
    return app


def _middleware(make: Callable[..., Any], **options: Any) -> ASGIApp:
    app: ASGIApp = make(middleware=[Middleware(MCPSessionMiddleware, keys=KEYS, **grouped(**options))])
    return app


def _wrapped(make: Callable[..., Any], **options: Any) -> ASGIApp:
    return MCPSessionMiddleware(make(middleware=[]), keys=KEYS, principal=principal, **grouped(**options))


_PLACES: Final = {
    "add_sessions": (_add_sessions, (sdk, _fastmcp)),
    "middleware": (_middleware, (_fastmcp,)),
    "wrapped": (_wrapped, (sdk, _fastmcp)),
}
_NAMES: Final = {sdk: f"sdk{MCP}", _fastmcp: f"fastmcp{FASTMCP}"}
_IS_MODERN: Final = {sdk: MCP > 1, _fastmcp: FASTMCP > 3}


@dataclass(frozen=True)
class Cell:
    """One framework, with the middleware at one place, in one era and mode."""

    make: Callable[..., Any]
    place: str
    modern: bool
    stateful: bool

    def __str__(self) -> str:
        return "-".join(
            [
                _NAMES[self.make],
                self.place,
                "modern" if self.modern else "legacy",
                "stateful" if self.stateful else "stateless",
            ]
        )

    @asynccontextmanager
    async def running(self, *, authenticated: bool = True, **options: Any) -> AsyncIterator[Running]:
        """The small server, up for as long as the block lasts."""

        def make(middleware: list[Any]) -> Any:
            return self.make(authenticated=authenticated, stateful=self.stateful, middleware=middleware)

        app = _PLACES[self.place][0](make, **options)
        with anyio.fail_after(DEADLINE):
            async with lifespan(app):
                yield Running(app, self)


@dataclass(frozen=True)
class Running:
    """A server that is up."""

    app: ASGIApp
    cell: Cell

    async def client(self, token: str | None = None) -> Client:
        """A new client that has shaken hands, with an access token or without."""
        client = Client(self.app, modern=self.cell.modern, headers={} if token is None else bearer(token))
        await client.connect()
        return client


CELLS: Final = [
    Cell(make, place, modern, stateful)
    for place, (_, makes) in _PLACES.items()
    for make, modern, stateful in product(makes, (False, True), (True, False))
    if (not modern or _IS_MODERN[make]) and not (modern and stateful)  # the modern era has no modes
]
STATEFUL: Final = [cell for cell in CELLS if cell.stateful]
MODERN: Final = [cell for cell in CELLS if cell.modern]
