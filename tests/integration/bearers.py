"""Small servers with bearer tokens, on every framework that is installed, with the middleware at every good place.

Ann and Bob use the same client, Ann also uses another; one of Ann's tokens is past its time.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import product
from typing import Any, Final

import anyio
from apps import grouped
from clients import RealClient, lifespan
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Scope

from integration.servers import FRAMEWORKS, http_app, server_class
from integration.servers import Cell as Mode
from mcp_sessions import MCPSessionMiddleware, add_sessions, current_session

KEYS: Final = "a secret of the bearer tests, at least 32 bytes long"
DEADLINE: Final = 60  # seconds after which a test that hangs fails

USERS: Final[dict[str, dict[str, Any]]] = {
    "ann": {"client_id": "desk", "sub": "ann"},
    "bob": {"client_id": "desk", "sub": "bob"},
    "ann-elsewhere": {"client_id": "phone", "sub": "ann"},
    "late": {"client_id": "desk", "sub": "ann", "expires_at": int(time.time()) - 60},
}
TOKENS: Final = {token: {"scopes": [], **user} for token, user in USERS.items()}

SDK, FASTMCP = FRAMEWORKS
ERAS: Final = (False, True) if SDK == "sdk2" else (False,)


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


def authentication(framework: str) -> dict[str, Any]:
    """Return a server's options for bearer authentication by the tokens above."""
    if framework.startswith("fastmcp"):
        return {"auth": import_module("fastmcp.server.auth.providers.jwt").StaticTokenVerifier(TOKENS)}
    settings = import_module("mcp.server.auth.settings").AuthSettings
    return {"auth": settings(issuer_url="https://auth.example", resource_server_url=None), "token_verifier": Verifier()}


def made(framework: str, *tools: Any, authenticated: bool = False, stateful: bool = False, **options: Any) -> Any:
    """Return a server with these tools, or with `whoami`, with a framework's own further options."""
    mcp = server_class(framework)("s", **(authentication(framework) if authenticated else {}))
    for tool in tools or [whoami]:
        mcp.tool()(tool)
    return http_app(mcp, Mode(framework, modern=False, stateful=stateful, json=False), **options)


@asynccontextmanager
async def connected(app: ASGIApp, *, modern: bool, **options: Any) -> AsyncIterator[RealClient]:
    """Wrap a server in the middleware, and yield a client that has shaken hands with it."""
    app = MCPSessionMiddleware(app, **grouped(**{"keys": KEYS, "transport": "off", **options}))
    async with lifespan(app):
        client = RealClient(app, modern=modern)
        await client.connect()
        yield client


def _add_sessions(make: Callable[..., Any], **options: Any) -> ASGIApp:
    app: ASGIApp = add_sessions(make(), keys=KEYS, **grouped(**options))
    return app


def _middleware(make: Callable[..., Any], **options: Any) -> ASGIApp:
    app: ASGIApp = make(middleware=[Middleware(MCPSessionMiddleware, keys=KEYS, **grouped(**options))])
    return app


def _wrapped(make: Callable[..., Any], **options: Any) -> ASGIApp:
    return MCPSessionMiddleware(make(), keys=KEYS, principal=principal, **grouped(**options))


_PLACES: Final = {"add_sessions": _add_sessions, "middleware": _middleware, "wrapped": _wrapped}


@dataclass(frozen=True)
class Cell:
    """One framework, with the middleware at one place, in one era and mode."""

    framework: str
    place: str
    modern: bool
    stateful: bool

    def __str__(self) -> str:
        era, mode = "modern" if self.modern else "legacy", "stateful" if self.stateful else "stateless"
        return f"{self.framework}-{self.place}-{era}-{mode}"

    @asynccontextmanager
    async def running(self, *, authenticated: bool = True, **options: Any) -> AsyncIterator[Running]:
        """The small server, up for as long as the block lasts."""
        make = partial(made, self.framework, authenticated=authenticated, stateful=self.stateful)
        app = _PLACES[self.place](make, **options)
        with anyio.fail_after(DEADLINE):
            async with lifespan(app):
                yield Running(app, self)


@dataclass(frozen=True)
class Running:
    """A server that is up."""

    app: ASGIApp
    cell: Cell

    async def client(self, token: str | None = None) -> RealClient:
        """A new client that has shaken hands, with an access token or without."""
        client = RealClient(self.app, modern=self.cell.modern, headers={} if token is None else bearer(token))
        await client.connect()
        return client


CELLS: Final = [  # the SDK takes no middleware, so FastMCP is in every mode there
    Cell(framework, place, modern, stateful)
    for place, framework in product(_PLACES, FRAMEWORKS)
    for modern, stateful in ((False, True), (False, False), (True, False))  # the modern era has no modes
    if modern in ERAS and (place == "middleware" if framework == FASTMCP else place != "middleware")
] + [Cell(FASTMCP, place, modern=False, stateful=False) for place in ("add_sessions", "wrapped")]
STATEFUL: Final = [cell for cell in CELLS if cell.stateful]
