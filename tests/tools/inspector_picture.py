"""Take the picture of the inspector for the docs: `python -m tests.tools.inspector_picture`.

A small shop answers four clients: two calls run, one has failed, and one was refused.
"""

import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "support")]

from apps import Server, sessions
from browser import browsing
from clients import Client, by, credentials, user_of
from programs import free_port

from mcp_sessions import Session
from mcp_sessions.stores import MemoryStore

VISITS = [
    ("alice", "Claude Code", ["search", "add_to_cart", "checkout"]),
    ("bob", "Visual Studio Code", ["search", "add_to_cart"]),
    ("carol", "Cursor", ["search", "checkout"]),
    ("dave", "mcp-sessions", ["search"]),
]


async def take(path: Path) -> None:
    """Serve the shop, call its tools, and write the picture of the page."""
    release, address = anyio.Event(), f"127.0.0.1:{free_port()}"

    async def quick(session: Session | None, arguments: dict[str, Any]) -> str:
        await anyio.sleep(0.02)
        return "done"

    async def checkout(session: Session | None, arguments: dict[str, Any]) -> str:
        await release.wait()
        return "done"

    async def broken(session: Session | None, arguments: dict[str, Any]) -> str:
        raise LookupError

    options: dict[str, Any] = {"principal": user_of, "user": lambda principal: principal.subject, "clock": time.time}
    server = Server(search=quick, add_to_cart=quick, checkout=checkout, refund=broken)
    app = sessions(server, store=MemoryStore(), inspector=address, **options)
    client = Client(app)
    app.services.started()
    held: dict[str, str] = {}
    async with anyio.create_task_group() as group:
        for user, host, calls in VISITS:
            named = {"_meta": {"io.modelcontextprotocol/clientInfo": {"name": host, "version": "2.1"}}}
            held = credentials((await client.send("sessions/create", named, by(user))).result["session"])
            for tool in calls:
                call = partial(client.tool, tool, by(user), session=held)
                group.start_soon(call) if tool == "checkout" else await call()
        await client.tool("search", by("mallory"), session=held)  # a session id of another user
        with suppress(LookupError):
            await client.tool("refund", by("dave"), session=held)
        await anyio.to_thread.run_sync(photograph, address, path)
        release.set()
    await app.services.stopping()


def photograph(address: str, path: Path) -> None:
    with browsing() as browser:
        browser.resize(1280, 620)
        browser.get(f"http://{address}/")
        browser.until("return document.querySelectorAll('.session').length === 4")
        time.sleep(2)
        assert browser.save_screenshot(str(path))


if __name__ == "__main__":
    anyio.run(take, ROOT / "docs" / "images" / "inspector.png")
