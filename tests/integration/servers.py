"""Small servers on every framework that is installed, and the cells in which they run.

A cell is one framework in one mode; an unknown major version is an error. Frameworks are imported by name, since no
environment has them all. Where bearer tokens are asked for, Ann and Bob use the same client, and Ann also another.
"""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib import import_module
from itertools import product
from typing import Any, Final

import anyio
from apps import grouped
from clients import RealClient, lifespan
from environments import INSTALLED
from packaging.version import Version
from starlette.types import ASGIApp

from mcp_sessions import MCPSessionMiddleware, current_session, require_session

KEYS: Final = "a secret of the integration tests, at least 32 bytes long"


@dataclass(frozen=True)
class Cell:
    """One framework in one mode."""

    framework: str  # with its major version
    modern: bool = False  # the era of the client
    stateful: bool = False  # the legacy transport hands out transport sessions
    json: bool = False  # answers are JSON instead of event streams

    def __str__(self) -> str:
        era = "modern" if self.modern else "legacy"
        mode = "stateful" if self.stateful else "stateless"
        return f"{self.framework}-{era}-{mode}-{'json' if self.json else 'sse'}"


@dataclass
class Hall:
    """Where calls wait until a test opens it."""

    came: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    _moved: anyio.Event = field(default_factory=anyio.Event)
    _open: anyio.Event = field(default_factory=anyio.Event)

    async def enter(self, name: str) -> None:
        self._note(self.came, name)
        try:
            await self._open.wait()
        finally:
            self._note(self.left, name)

    def _note(self, moved: list[str], name: str) -> None:
        moved.append(name)
        self._moved.set()
        self._moved = anyio.Event()

    async def filled(self, expected: int) -> None:
        while len(self.came) < expected:
            await self._moved.wait()

    async def emptied(self) -> None:
        """Wait until every call that arrived has left."""
        while len(self.left) < len(self.came):
            await self._moved.wait()

    def open(self) -> None:
        self._open.set()


def ref() -> str:
    """Return the ref of the current session, which is the answer of most handlers."""
    session = current_session()
    return "nobody" if session is None else session.ref


async def whoami() -> str:
    return ref()


async def count() -> str:
    """Count the calls of the session in its state."""
    session = current_session()
    if session is None:
        return "nobody"
    session.state["n"] = session.state.get("n", 0) + 1
    return str(session.state["n"])


async def tally() -> str:
    return str(await require_session().data.increment("n"))


async def leave() -> str:
    session = require_session()
    await session.end("left")
    return f"{session.ref} left"


_CLASSES: Final = {
    "sdk1": ("mcp.server.fastmcp", "FastMCP"),
    "sdk2": ("mcp.server.mcpserver", "MCPServer"),
    "fastmcp3": ("fastmcp", "FastMCP"),
    "fastmcp4": ("fastmcp", "FastMCP"),
}


def server_class(framework: str) -> Any:
    """Return the class of a framework's servers."""
    module, name = _CLASSES[framework]
    return getattr(import_module(module), name)


def context_class(framework: str) -> Any:
    """Return the class by which a framework gives a tool its context."""
    return import_module(_CLASSES[framework][0]).Context


def http_app(mcp: Any, cell: Cell, **options: Any) -> Any:
    """Return the ASGI application of a framework's server, in the mode of a cell."""
    modes = {"stateless_http": not cell.stateful, "json_response": cell.json}
    if cell.framework == "sdk1":
        mcp.settings = mcp.settings.model_copy(update=modes)
        return mcp.streamable_http_app()
    if cell.framework == "sdk2":
        return mcp.streamable_http_app(**modes, **options)
    hosts = ["127.0.0.1:8000", "127.0.0.1"]
    return mcp.http_app(**modes, host_origin_protection=True, allowed_hosts=hosts, **options)


def made(cell: Cell, *tools: Any, authenticated: bool = False, **options: Any) -> Any:
    """Return a server with these tools, or with `whoami`, with a framework's own further options."""
    mcp = server_class(cell.framework)("s", **(_authentication(cell.framework) if authenticated else {}))
    for tool in tools or [whoami]:
        mcp.tool()(tool)
    return http_app(mcp, cell, **options)


USERS: Final[dict[str, dict[str, Any]]] = {
    "ann": {"client_id": "desk", "sub": "ann"},
    "bob": {"client_id": "desk", "sub": "bob"},
    "ann-elsewhere": {"client_id": "phone", "sub": "ann"},
    "desk": {"client_id": "desk"},  # as for every user of that client
    "desk-itself": {"client_id": "desk", "sub": "desk"},
    "late": {"client_id": "desk", "sub": "ann", "expires_at": int(time.time()) - 60},
}
TOKENS: Final = {token: {"scopes": [], **user} for token, user in USERS.items()}


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


class _Verifier:
    """The tokens above, for the official SDK. That one is late is left to the SDK to find."""

    async def verify_token(self, token: str) -> Any:
        user = USERS.get(token)
        access_token = import_module("mcp.server.auth.provider").AccessToken
        return user and access_token(
            token=token,
            client_id=user["client_id"],
            scopes=[],
            subject=user.get("sub"),
            expires_at=user.get("expires_at"),
        )


def _authentication(framework: str) -> dict[str, Any]:
    if framework.startswith("fastmcp"):
        return {"auth": import_module("fastmcp.server.auth.providers.jwt").StaticTokenVerifier(TOKENS)}
    settings = import_module("mcp.server.auth.settings").AuthSettings
    return {
        "auth": settings(issuer_url="https://auth.example", resource_server_url=None),
        "token_verifier": _Verifier(),
    }


def _completing(mcp: Any, framework: str) -> tuple[Any, Callable[[str], Any]]:
    """Return the decorator of a completion, and the form of its values."""
    if framework == "fastmcp4":
        return mcp.completion, lambda value: [value]
    completion = import_module("mcp_types" if framework == "sdk2" else "mcp.types").Completion
    decorator = (mcp._mcp_server if framework == "fastmcp3" else mcp).completion()
    return decorator, lambda value: completion(values=[value])


def bare(cell: Cell, hall: Hall | None = None, **options: Any) -> Any:
    """Return the small server as the framework makes it: tools, a resource, a prompt and a completion."""
    mcp, hall = server_class(cell.framework)("small"), hall or Hall()
    completion, completed = _completing(mcp, cell.framework)

    def whoami_sync() -> str:
        return ref()

    async def hold(name: str) -> str:
        before = ref()
        await hall.enter(name)
        return f"{before} {ref()}"

    async def progress(ctx: Any) -> str:
        await ctx.report_progress(1, 3)
        await hall.enter("progress")
        await ctx.report_progress(2, 3)
        await ctx.report_progress(3, 3)
        return ref()

    async def complete(about: Any, argument: Any, context: Any) -> Any:
        return completed(ref())

    progress.__annotations__ = {"ctx": context_class(cell.framework), "return": str}
    for tool in (whoami, whoami_sync, hold, count, tally, leave, progress):
        mcp.tool()(tool)
    mcp.resource("session://me")(whoami)
    mcp.prompt(name="who")(whoami)
    completion(complete)
    return http_app(mcp, cell, **options)


def wrapped(cell: Cell, hall: Hall | None = None, **options: Any) -> ASGIApp:
    return MCPSessionMiddleware(bare(cell, hall), **grouped(**{"keys": KEYS, "transport": "off", **options}))


SDK: Final = f"sdk{Version(INSTALLED['mcp']).major}"
FASTMCP: Final = f"fastmcp{Version(INSTALLED['fastmcp']).major}"
FRAMEWORKS: Final = SDK, FASTMCP
ERAS: Final = {"sdk1": (False,), "sdk2": (False, True)}[SDK]
CELLS: Final = [
    Cell(framework, modern, stateful, json)
    for framework in FRAMEWORKS
    for modern, stateful, json in product(ERAS, (True, False), (True, False))
]

STREAMING: Final = [cell for cell in CELLS if not cell.json]
COVERING: Final = [cell for cell in CELLS if cell.stateful is not cell.json]
"""Every framework, era, transport and form of answer, but not every combination."""
STATEFUL: Final = [cell for cell in CELLS if cell.stateful and not cell.modern]

DEADLINE: Final = 60  # seconds after which a test that hangs fails


@dataclass(frozen=True)
class Running:
    """A server that is up."""

    app: ASGIApp
    cell: Cell
    hall: Hall

    def client(self, **headers: str) -> RealClient:
        return RealClient(self.app, modern=self.cell.modern, headers=headers)

    async def connected(self, **headers: str) -> RealClient:
        """Return a new client that has completed its handshake."""
        client = self.client(**headers)
        await client.connect()
        return client


@asynccontextmanager
async def running(cell: Cell, make: Callable[..., ASGIApp] = wrapped, **options: Any) -> AsyncIterator[Running]:
    hall = Hall()
    app = make(cell, hall, **options)
    with anyio.fail_after(DEADLINE):
        async with lifespan(app):
            yield Running(app, cell, hall)


@asynccontextmanager
async def connected(app: ASGIApp, *, modern: bool, **options: Any) -> AsyncIterator[RealClient]:
    """Wrap a server in the middleware, and yield a client that has shaken hands with it."""
    app = MCPSessionMiddleware(app, **grouped(**{"keys": KEYS, "transport": "off", **options}))
    async with lifespan(app):
        client = RealClient(app, modern=modern)
        await client.connect()
        yield client
