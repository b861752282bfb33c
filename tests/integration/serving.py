"""A real HTTP server on a free loopback port, in the test's own event loop, and the frameworks' own clients of it.

Server and client share an event loop, so a test holds a call open with an event and never sleeps.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from importlib import import_module
from socket import socket
from typing import Any, cast

import anyio
import uvicorn
from clients import SESSION_KEY, credentials
from starlette.types import ASGIApp

from .servers import DEADLINE, Cell

Progress = Callable[[float], Awaitable[None]]


class _Server(uvicorn.Server):
    """Uvicorn without its signal handlers, and with an event that is set when it is up."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = anyio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()


@asynccontextmanager
async def serving(app: ASGIApp) -> AsyncIterator[str]:
    """Serve within the block, and yield the URL of the MCP endpoint."""
    config = uvicorn.Config(app, port=0, log_level="warning", lifespan="on", timeout_graceful_shutdown=5)
    server = _Server(config)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve)
        await server.up.wait()
        port = server.servers[0].sockets[0].getsockname()[1]
        try:
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            server.should_exit = True


class _Whole:
    """A result type that keeps every member, for results without a model in the SDK."""

    @staticmethod
    def model_validate(result: dict[str, Any], **_: Any) -> dict[str, Any]:
        return result


@dataclass(frozen=True)
class Peer:
    """A framework's own client, connected."""

    call: Callable[..., Awaitable[Any]]  # its `call_tool`
    session: Any  # the SDK session under it, which sends any request
    progress: str  # the name of its argument for a progress callback

    @property
    def capabilities(self) -> Any:
        older = getattr(self.session, "get_server_capabilities", None)
        return self.session.server_capabilities if older is None else older()

    async def create(self) -> dict[str, str]:
        """Create a session, by the client's own means for methods that it does not know."""
        return credentials((await self._send("sessions/create", {}))["session"])

    async def delete(self, held: dict[str, str]) -> None:
        await self._send("sessions/delete", {"_meta": {SESSION_KEY: held}})

    async def tool(
        self, name: str, held: dict[str, str] | None = None, /, hear: Progress | None = None, **arguments: Any
    ) -> str:
        """Call a tool and return its text; `hear` is called with each progress."""

        async def tell(progress: float, total: float | None, message: str | None) -> None:
            assert hear is not None
            await hear(progress)

        listening = {} if hear is None else {self.progress: tell}
        meta = {} if held is None else {"meta": {SESSION_KEY: held}}
        result = await self.call(name, arguments, **meta, **listening)
        if held is not None:
            held |= credentials(result.meta[SESSION_KEY])
        return cast("str", result.content[0].text)

    async def _send(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        request = import_module("mcp.types").Request[dict[str, Any], str](method=method, params=params)
        return cast("dict[str, Any]", await self.session.send_request(request, _Whole))


@asynccontextmanager
async def peer(cell: Cell, to: Any) -> AsyncIterator[Peer]:
    """Connect a framework's own client; a test that hangs fails."""
    async with AsyncExitStack() as stack:
        stack.enter_context(anyio.fail_after(DEADLINE))
        if cell.framework == "sdk1":
            connect = import_module("mcp.client.streamable_http").streamable_http_client
            read, write, _ = await stack.enter_async_context(connect(to) if isinstance(to, str) else to)
            session = await stack.enter_async_context(import_module("mcp").ClientSession(read, write))
            await session.initialize()
            yield Peer(session.call_tool, session, "progress_callback")
        else:
            package, progress = ("mcp", "callback") if cell.framework == "sdk2" else ("fastmcp", "handler")
            era = {} if cell.framework == "fastmcp3" else {"mode": "auto" if cell.modern else "legacy"}
            client = await stack.enter_async_context(import_module(package).Client(to, **era))
            yield Peer(client.call_tool, client.session, f"progress_{progress}")
