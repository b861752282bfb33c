"""The same small server on every framework that is installed, and the cells in which it runs.

A cell is one framework in one mode. Which cells an environment has is read from a table by the
installed major versions: an unknown version is an error, never an empty set. Frameworks are imported
by name, since no environment has them all.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib import import_module
from itertools import product
from typing import Any, Final

import anyio
from apps import grouped
from environments import INSTALLED
from packaging.version import Version
from starlette.types import ASGIApp

from mcp_sessions import MCPSessionMiddleware, add_sessions, current_session

from .wire import Client, lifespan

KEYS: Final = "a secret of the integration tests, at least 32 bytes long"


@dataclass(frozen=True)
class Cell:
    """One framework in one mode.

    Args:
        framework: Its name with its major version.
        modern: Which era the client speaks.
        stateful: Whether the legacy era's transport hands out transport sessions.
        json: Whether answers are JSON instead of event streams.
    """

    framework: str
    modern: bool
    stateful: bool
    json: bool

    def __str__(self) -> str:
        era = "modern" if self.modern else "legacy"
        mode = "stateful" if self.stateful else "stateless"
        return f"{self.framework}-{era}-{mode}-{'json' if self.json else 'sse'}"


@dataclass
class Hall:
    """Where calls wait: each says that it came, and goes on when the hall is opened."""

    came: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    _expected: int = 0
    _full: anyio.Event = field(default_factory=anyio.Event)
    _open: anyio.Event = field(default_factory=anyio.Event)
    _empty: anyio.Event = field(default_factory=anyio.Event)

    async def enter(self, name: str) -> None:
        """Say who came, and wait."""
        self.came.append(name)
        if len(self.came) == self._expected:
            self._full.set()
        try:
            await self._open.wait()
        finally:
            self.left.append(name)
            if len(self.left) == len(self.came):
                self._empty.set()

    async def filled(self, expected: int) -> None:
        """Wait until so many calls are inside."""
        self._expected = expected
        if len(self.came) < expected:
            await self._full.wait()

    async def emptied(self) -> None:
        """Wait until nobody is inside, for a hall that somebody entered."""
        await self._empty.wait()

    def open(self) -> None:
        """Let everybody go on."""
        self._open.set()


def ref() -> str:
    """Whose request is being handled, as every handler of the small server answers it."""
    session = current_session()
    return "nobody" if session is None else session.ref


async def tally() -> str:
    """Count in what the server keeps for the session."""
    session = current_session()
    assert session is not None
    return str(await session.data.increment("n"))


async def leave() -> str:
    """End the session from within."""
    session = current_session()
    assert session is not None
    await session.end("left")
    return f"{session.ref} left"


def _fill(mcp: Any, hall: Hall, completion: Callable[[Any], Any], completed: Callable[[str], Any]) -> None:
    """Put the small server's tools, resource, prompt and completion on a framework's server."""

    async def whoami() -> str:
        return ref()

    def whoami_sync() -> str:
        return ref()

    async def hold(name: str) -> str:
        before = ref()
        await hall.enter(name)
        return f"{before} {ref()}"

    async def count() -> str:
        session = current_session()
        assert session is not None
        session.state["n"] = session.state.get("n", 0) + 1
        return str(session.state["n"])

    async def me() -> str:
        return ref()

    async def who() -> str:
        return ref()

    async def complete(about: Any, argument: Any, context: Any) -> Any:
        return completed(ref())

    for tool in (whoami, whoami_sync, hold, count, tally, leave):
        mcp.tool()(tool)
    mcp.resource("session://me")(me)
    mcp.prompt()(who)
    completion(complete)


def _progressing(mcp: Any, hall: Hall, context: Any) -> None:
    """A tool that tells of its progress, waits in the hall, and tells again."""

    async def progress(ctx: Any) -> str:
        await ctx.report_progress(1, 3)
        await hall.enter("progress")
        await ctx.report_progress(2, 3)
        await ctx.report_progress(3, 3)
        return ref()

    progress.__annotations__ = {"ctx": context, "return": str}
    mcp.tool()(progress)


# --- the frameworks ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Guard:
    """Bearer authentication: who each token belongs to."""

    users: Mapping[str, str]


def _access_tokens(users: Mapping[str, str]) -> Any:
    token_type = import_module("mcp.server.auth.provider").AccessToken

    class Verifier:
        async def verify_token(self, token: str) -> Any:
            user = users.get(token)
            return user and token_type(token=token, client_id=user, scopes=[])

    return Verifier()


def _sdk_auth(guard: Guard | None) -> dict[str, Any]:
    if guard is None:
        return {}
    settings = import_module("mcp.server.auth.settings").AuthSettings
    return {
        "auth": settings(issuer_url="https://auth.example", resource_server_url=None),
        "token_verifier": _access_tokens(guard.users),
    }


def _fastmcp_auth(guard: Guard | None) -> dict[str, Any]:
    if guard is None:
        return {}
    verifier = import_module("fastmcp.server.auth.providers.jwt").StaticTokenVerifier
    return {"auth": verifier({token: {"client_id": user, "scopes": []} for token, user in guard.users.items()})}


def _sdk2(cell: Cell, hall: Hall, guard: Guard | None, middleware: Sequence[Any]) -> Any:
    mcp = import_module("mcp.server.mcpserver").MCPServer("small", **_sdk_auth(guard))
    types = import_module("mcp_types")
    _fill(mcp, hall, mcp.completion(), lambda said: types.Completion(values=[said]))
    _progressing(mcp, hall, import_module("mcp.server.mcpserver").Context)
    return mcp.streamable_http_app(stateless_http=not cell.stateful, json_response=cell.json)


def _sdk1(cell: Cell, hall: Hall, guard: Guard | None, middleware: Sequence[Any]) -> Any:
    module = import_module("mcp.server.fastmcp")
    mcp = module.FastMCP("small", stateless_http=not cell.stateful, json_response=cell.json, **_sdk_auth(guard))
    types = import_module("mcp.types")
    _fill(mcp, hall, mcp.completion(), lambda said: types.Completion(values=[said]))
    _progressing(mcp, hall, module.Context)
    return mcp.streamable_http_app()


def _fastmcp4(cell: Cell, hall: Hall, guard: Guard | None, middleware: Sequence[Any]) -> Any:
    mcp = import_module("fastmcp").FastMCP("small", **_fastmcp_auth(guard))
    _fill(mcp, hall, mcp.completion, lambda said: [said])
    return _fastmcp_app(mcp, cell, hall, middleware)


def _fastmcp3(cell: Cell, hall: Hall, guard: Guard | None, middleware: Sequence[Any]) -> Any:
    mcp = import_module("fastmcp").FastMCP("small", **_fastmcp_auth(guard))
    types = import_module("mcp.types")
    _fill(mcp, hall, mcp._mcp_server.completion(), lambda said: types.Completion(values=[said]))
    return _fastmcp_app(mcp, cell, hall, middleware)


def _fastmcp_app(mcp: Any, cell: Cell, hall: Hall, middleware: Sequence[Any]) -> Any:
    _progressing(mcp, hall, import_module("fastmcp").Context)
    return mcp.http_app(
        stateless_http=not cell.stateful,
        json_response=cell.json,
        middleware=list(middleware),
        host_origin_protection=True,
        allowed_hosts=["127.0.0.1:8000", "127.0.0.1"],
    )


_MAKERS: Final[dict[str, Callable[[Cell, Hall, Guard | None, Sequence[Any]], Any]]] = {
    "sdk1": _sdk1,
    "sdk2": _sdk2,
    "fastmcp3": _fastmcp3,
    "fastmcp4": _fastmcp4,
}


def bare(cell: Cell, hall: Hall | None = None, guard: Guard | None = None, middleware: Sequence[Any] = ()) -> Any:
    """The small server as the framework makes it, without the middleware unless `middleware` names it."""
    return _MAKERS[cell.framework](cell, hall or Hall(), guard, middleware)


def wrapped(cell: Cell, hall: Hall | None = None, guard: Guard | None = None, **options: Any) -> ASGIApp:
    """The small server inside the middleware."""
    return MCPSessionMiddleware(bare(cell, hall, guard), **grouped(**{"keys": KEYS, "transport": "off", **options}))


def added(cell: Cell, hall: Hall | None = None, guard: Guard | None = None, **options: Any) -> ASGIApp:
    """The small server with the middleware inside of its authentication."""
    app: ASGIApp = add_sessions(bare(cell, hall, guard), **grouped(**{"keys": KEYS, "transport": "off", **options}))
    return app


# --- the cells of this environment ---------------------------------------------------------------

_ERAS: Final = {"sdk1": (False,), "fastmcp3": (False,), "sdk2": (False, True), "fastmcp4": (False, True)}


def _major(distribution: str) -> int:
    return Version(INSTALLED[distribution]).major


FRAMEWORKS: Final = (f"sdk{_major('mcp')}", f"fastmcp{_major('fastmcp')}")
CELLS: Final = [
    Cell(framework, modern, stateful, json)
    for framework in FRAMEWORKS
    for modern, stateful, json in product(_ERAS[framework], (True, False), (True, False))
]

STREAMING: Final = [cell for cell in CELLS if not cell.json]
COVERING: Final = [cell for cell in CELLS if cell.stateful is not cell.json]
"""Every framework, era, transport and form of answer, though not every combination."""
STATEFUL: Final = [cell for cell in CELLS if cell.stateful and not cell.modern]


# --- a server that runs --------------------------------------------------------------------------

DEADLINE: Final = 30  # seconds after which a test that hangs fails


@dataclass(frozen=True)
class Running:
    """A server that is up."""

    app: ASGIApp
    cell: Cell
    hall: Hall

    def client(self, **headers: str) -> Client:
        """A new client of it."""
        return Client(self.app, modern=self.cell.modern, headers=headers)

    async def connected(self, **headers: str) -> Client:
        """A new client that has shaken hands."""
        client = self.client(**headers)
        await client.connect()
        return client


@asynccontextmanager
async def running(
    cell: Cell, guard: Guard | None = None, make: Callable[..., ASGIApp] = wrapped, **options: Any
) -> AsyncIterator[Running]:
    """The small server with the middleware, up for as long as the block lasts."""
    hall = Hall()
    app = make(cell, hall, guard, **options)
    with anyio.fail_after(DEADLINE):
        async with lifespan(app):
            yield Running(app, cell, hall)
