"""The example servers in this process, and calls of their tools.

Import it before any module of `examples/`: it makes them importable by name, and skips the importing file where the
SDK is older than the examples need.
"""

import importlib
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from clients import RealClient, lifespan
from environments import require

require("mcp>=2")

from starlette.types import ASGIApp, Receive, Scope, Send

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
sys.path.insert(0, str(EXAMPLES))


def fresh(name: str) -> Any:
    """Import an example again and return its app."""
    sys.modules.pop(name, None)
    return importlib.import_module(name).app


@asynccontextmanager
async def running(name: str) -> AsyncIterator[ASGIApp]:
    """Run a new app of an example within the block, with keys of its own."""
    state: dict[str, Any] = {}

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"] = state if scope["type"] == "lifespan" else dict(state)  # as servers do
        await app(scope, receive, send)

    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("MCP_SESSIONS_KEYS", secrets.token_urlsafe(32))
        app = fresh(name)
        async with lifespan(served):
            yield served


@dataclass(eq=False)
class Failed:  # noqa: PLW1641  # it is only compared
    """A call that failed, with the text of the tool's error or of the protocol's; it equals one with a part of it."""

    text: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Failed) and (self.text in other.text or other.text in self.text)


async def use(client: RealClient, tool: str, held: dict[str, str] | None = None, /, **arguments: Any) -> Any:
    """Call a tool, and return its value, or how it failed."""
    answer = (await client.send("tools/call", {"name": tool, "arguments": arguments}, session=held)).json
    if "error" in answer:
        return Failed(f"{answer['error']['code']} {answer['error']['message']}")
    result = answer["result"]
    if result.get("isError"):
        return Failed(result["content"][0]["text"])
    content = result["structuredContent"]
    return content["result"] if content.keys() == {"result"} else content  # objects come as they are
