"""What `Wire(era="auto")` costs: the features of clients that it leads to the legacy era, bare against wrapped.

`python -m tests.tools.frameworks --features` tries clients of Node, which keep no cookies, with a server that has
every feature, and prints the table of `docs/clients.md`. A question to the client counts where the server may ask
in either era's way. A server that keeps transport sessions is wrapped with the bridge.
"""

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import mcp_types as types
import pages
from conformance import server
from conformance.content import Json, result, text
from mcp.shared.message import ServerMessageMetadata
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

import mcp_sessions

from . import trial

CLIENTS: Final = {
    "ts": "@modelcontextprotocol/client",
    "ai": "@ai-sdk/mcp",
    "mastra": "@mastra/mcp",
    "agents": "@openai/agents",
}
COLUMNS: Final = {
    "bare": "bare",
    "bare, in the legacy era": "legacy",
    "wrapped, the server keeps transport sessions": "stateful",
    "wrapped, the server is stateless": "stateless",
}
FEATURES: Final = (
    *("tools", "resources", "prompts", "elicitation", "multi-round-trip tools", "sampling"),
    *("roots", "listening", "progress", "cancellation", "resumption"),
)


def bare(*, stateless_http: bool = False) -> ASGIApp:
    """Serve every feature; `cancelled` says how many of the calls of `sleep` were."""
    cancelled = 0

    async def sleep(_context: server.Context, _params: Any) -> Json:
        nonlocal cancelled
        try:
            await anyio.sleep(trial.DEADLINE)
        except anyio.get_cancelled_exc_class():
            cancelled += 1
            raise
        return result(text("slept"))

    async def count(_context: server.Context, _params: Any) -> Json:
        return result(text(str(cancelled)))

    return server.everything(
        stateless_http=stateless_http, sleep=sleep, cancelled=count, roots=_list_roots, change=_announce
    )


async def _list_roots(context: server.Context, _params: Any) -> Json:
    """Ask for the client's roots in the legacy era's way."""
    beside = ServerMessageMetadata(related_request_id=context.request_id)
    found = await context.session.send_request(types.ListRootsRequest(), types.ListRootsResult, metadata=beside)
    return result(text(found.model_dump_json()))


async def _announce(context: server.Context, _params: Any) -> Json:
    """Announce other tools in the legacy era's way."""
    await context.session.send_tool_list_changed()
    return result(text("announced"))


def legacy() -> ASGIApp:
    """Serve every feature in the legacy era alone."""
    app = bare()

    async def refuse_discovery(scope: Scope, receive: Receive, send: Send) -> None:
        if dict(scope.get("headers", ())).get(b"mcp-method") == b"server/discover":
            error = {"jsonrpc": "2.0", "id": None, "error": {"code": -32601, "message": "Method not found"}}
            await JSONResponse(error, 404)(scope, receive, send)
        else:
            await app(scope, receive, send)

    return refuse_discovery


def wrapped(*, stateless: bool) -> ASGIApp:
    return mcp_sessions.MCPSessionMiddleware(
        bare(stateless_http=stateless),
        keys="clients and their features: a key",
        transport=mcp_sessions.TransportSessions(bridge=not stateless),
        wire=mcp_sessions.Wire(era="auto"),
    )


stateful, stateless = partial(wrapped, stateless=False), partial(wrapped, stateless=True)


def seen(client: str, factory: str, cache: Path) -> dict[str, bool]:
    """Return which of its features a client has with a server."""
    application = f"frameworks.features:{factory}"
    with trial.uvicorn("--factory", application, folder=cache, PYTHONPATH=":".join(sys.path)) as url:
        command = [*trial.node_command(cache, "features"), client, url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=trial.DEADLINE, check=True)
    lines = (line.partition(": ") for line in done.stdout.splitlines())
    return {name: works == "true" for name, _, works in lines if name in FEATURES}


def table(cache: Path, versions: dict[str, str]) -> str:
    """Try all clients with all servers, and return the table: what a client lacks of its features."""
    rows = []
    for client, package in CLIENTS.items():
        cells = [_cell(seen(client, factory, cache)) for factory in COLUMNS.values()]
        print(package, *cells, sep=" | ", flush=True)
        rows.append((f"`{package}` {versions[package]}", *cells))
    return pages.table(("client", *COLUMNS), rows)


def _cell(features: dict[str, bool]) -> str:
    missing = [feature for feature in FEATURES if not features.get(feature, True)]
    return f"no {', '.join(missing)}" if missing else "all"
