"""The servers of one environment, each on a port of its own, for clients of any other.

A program: it prints one line of JSON, the URL of each server, and serves until its standard input ends.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import version
from itertools import product
from typing import Final

import anyio

from integration.servers import FRAMEWORKS, Cell, wrapped
from integration.serving import serving

DISTRIBUTIONS: Final = {"sdk": ("mcp", "SDK"), "fastmcp": ("fastmcp", "FastMCP")}


def label(framework: str) -> str:
    """Return the name and the installed version of a framework, as in the table."""
    distribution, name = DISTRIBUTIONS[framework.rstrip("0123456789")]
    return f"{name} {version(distribution)}"


def cells(frameworks: Sequence[str]) -> list[Cell]:
    """Return the server in each mode; its clients choose the era."""
    return [
        Cell(framework, modern=False, stateful=stateful, json=as_json)
        for framework, stateful, as_json in product(frameworks, (True, False), (True, False))
    ]


def name(cell: Cell) -> str:
    """Name one server in results: the framework, its transport sessions, and the form of its answers."""
    mode = "stateful" if cell.stateful else "stateless"
    return f"{label(cell.framework)}|{mode}|{'JSON' if cell.json else 'SSE'}"


@asynccontextmanager
async def hosting(frameworks: Sequence[str]) -> AsyncIterator[dict[str, str]]:
    """Serve within the block, stateful servers behind the bridge, and yield the URL of each by name."""
    async with AsyncExitStack() as stack:
        yield {
            name(cell): await stack.enter_async_context(serving(wrapped(cell, transport="auto", bridge=cell.stateful)))
            for cell in cells(frameworks)
        }


async def host(frameworks: Sequence[str]) -> None:
    """Serve until standard input ends."""
    async with hosting(frameworks) as urls:
        print(json.dumps(urls), flush=True)
        await anyio.to_thread.run_sync(sys.stdin.read)


def main() -> None:
    """Run the program; its arguments choose among the frameworks of its environment."""
    anyio.run(host, [framework for framework in FRAMEWORKS if framework in (sys.argv[1:] or FRAMEWORKS)])
