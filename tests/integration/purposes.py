"""A server with the use cases of sessions: a count, a transaction, and a tool that only some sessions have.

It is the same on every framework. The open database transaction of a session is rolled back when the session ends.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import anyio
from apps import grouped
from starlette.types import ASGIApp

from mcp_sessions import EndedSession, MCPSessionMiddleware, Session, current_session

from .servers import DEADLINE, KEYS, Cell, http_app, server_class
from .wire import Client, lifespan

ADMIN_ONLY = "drop_contents"


@dataclass
class Office:
    """The server's side: a database file, and the transactions that sessions have open in it."""

    path: Path
    transactions: dict[str, sqlite3.Connection] = field(default_factory=dict)
    freed: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        with closing(self._connected()) as database:
            database.execute("CREATE TABLE contents (line TEXT)")

    def _connected(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, isolation_level=None, timeout=0, check_same_thread=False)

    @property
    def contents(self) -> list[str]:
        with closing(self._connected()) as database:
            return [line for (line,) in database.execute("SELECT line FROM contents")]

    def begin(self, ref: str) -> None:
        """Open a session's transaction; only one can be open at a time."""
        database = self._connected()
        try:
            database.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            database.close()
            raise
        self.transactions[ref] = database

    def end(self, ref: str, how: str) -> None:
        """Close a session's transaction with COMMIT or ROLLBACK."""
        database = self.transactions.pop(ref)
        database.execute(how)
        database.close()

    def on_end(self, session: EndedSession, reason: str) -> None:
        if session.ref in self.transactions:
            self.end(session.ref, "ROLLBACK")
            self.freed.append((session.ref, reason))


def _session() -> Session:
    session = current_session()
    assert session is not None
    return session


def _fill(mcp: Any, office: Office, error: type[Exception]) -> None:
    """Put the tools on a framework's server; the text of `error` reaches the client."""

    async def count() -> str:
        return str(await _session().data.increment("count"))

    async def enable_admin() -> str:
        await _session().data.set("admin", value=True)
        return "enabled"

    async def disable_admin() -> str:
        await _session().data.delete("admin")
        return "disabled"

    async def drop_contents() -> str:
        if not await is_admin():
            raise error(f"ToolNotOffered: {ADMIN_ONLY} is not offered in this session; list its tools again")
        return "dropped"

    for tool in (count, *_transaction(office), enable_admin, disable_admin, drop_contents):
        mcp.tool()(tool)


def _transaction(office: Office) -> list[Callable[..., Awaitable[str]]]:
    async def begin_transaction() -> str:
        office.begin(_session().ref)
        return "begun"

    async def read_contents() -> str:
        lines = office.transactions[_session().ref].execute("SELECT line FROM contents")
        return " ".join(line for (line,) in lines)

    async def write_contents(line: str) -> str:
        office.transactions[_session().ref].execute("INSERT INTO contents VALUES (?)", [line])
        return "written"

    async def end_transaction() -> str:
        office.end(_session().ref, "COMMIT")
        return "ended"

    return [begin_transaction, read_contents, write_contents, end_transaction]


async def is_admin() -> bool:
    """Whether the session of this request has the admin tool."""
    session = current_session()
    return session is not None and bool(await session.data.get("admin"))


async def _offered(tools: Any) -> Any:
    return [tool for tool in tools if tool.name != ADMIN_ONLY or await is_admin()]


def _sdk(framework: str) -> Any:
    class Offering(server_class(framework)):  # type: ignore[misc]  # whichever SDK is installed
        async def list_tools(self) -> Any:
            return await _offered(await super().list_tools())

    return Offering("office")


def _fastmcp(framework: str) -> Any:
    base: Any = import_module("fastmcp.server.middleware")

    class Offering(base.Middleware):  # type: ignore[misc]  # whichever FastMCP is installed
        async def on_list_tools(self, context: Any, call_next: Any) -> Any:
            return await _offered(await call_next(context))

    return server_class(framework)("office", middleware=[Offering()])


_MAKERS: dict[str, tuple[Any, str]] = {
    "sdk1": (_sdk, "mcp.server.fastmcp.exceptions"),
    "sdk2": (_sdk, "mcp.server.mcpserver.exceptions"),
    "fastmcp3": (_fastmcp, "fastmcp.exceptions"),
    "fastmcp4": (_fastmcp, "fastmcp.exceptions"),
}


def office_app(cell: Cell, office: Office, **options: Any) -> ASGIApp:
    make, errors = _MAKERS[cell.framework]
    mcp = make(cell.framework)
    _fill(mcp, office, import_module(errors).ToolError)
    return MCPSessionMiddleware(http_app(mcp, cell), keys=KEYS, on_end=office.on_end, **grouped(**options))


@asynccontextmanager
async def open_office(cell: Cell, folder: Path, **options: Any) -> AsyncIterator[tuple[Office, Client]]:
    """Serve within the block, with a client that has completed its handshake."""
    office = Office(folder / "contents.db")
    app = office_app(cell, office, **options)
    with anyio.fail_after(DEADLINE):
        async with lifespan(app):
            client = Client(app, modern=cell.modern)
            await client.connect()
            yield office, client
