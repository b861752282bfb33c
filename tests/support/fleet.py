"""Several workers in one process: middlewares that share a store, each with a stateful server of its own.

They reach each other by real sockets. A worker that is gone has no socket any more, but its row is still in the store,
as after SIGKILL.
"""

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from apps import sessions
from clients import Client, Header
from stateful import Stateful

from mcp_sessions import MCPSessionMiddleware
from mcp_sessions._affinity.affinity import WorkerAffinity


class Fleet:
    """The workers, each with a server, by their number."""

    def __init__(self, servers: Sequence[Any], apps: Sequence[MCPSessionMiddleware]) -> None:
        self.servers, self.apps = servers, apps

    def client(self, number: int) -> Client:
        """Return a client whose requests reach one worker."""
        return Client(self.apps[number], modern=False)

    def affinity(self, number: int) -> WorkerAffinity:
        found = self.apps[number].affinity
        assert found is not None
        return found

    def kill(self, number: int) -> None:
        """Let a worker be gone, as if its process had been killed."""
        affinity = self.affinity(number)
        workers = affinity.workers
        assert workers._renewing is not None
        workers._renewing.cancel()
        for server in workers._servers:
            server.close()
        for task in affinity._serving:
            task.cancel()


@asynccontextmanager
async def fleet(
    folder: Path, count: int = 2, *, server: Callable[[int], Any] | None = None, **options: Any
) -> AsyncIterator[Fleet]:
    """Run workers within the block."""
    made = server or (lambda number: Stateful(names=f"server-{number}-"))
    servers = [made(number) for number in range(count)]
    for one in servers:
        one.version = {"protocolVersion": "2025-11-25"}
    given = {"store": f"sqlite:{folder}/sessions.db", "clock": time.time, "bridge": True, **options}
    apps = [sessions(one, **given) for one in servers]
    started = Fleet(servers, apps)
    try:
        for app in apps:
            await app._runtime.listen_to_workers()
        yield started
    finally:
        for app in apps:
            if app.affinity is not None:
                await app.affinity.stop()
            await app._runtime.store.close()


async def begun(workers: Fleet, number: int = 0) -> Header:
    """Begin a session on a worker, and return the header that names it."""
    return await workers.client(number).initialize()
