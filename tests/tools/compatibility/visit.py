"""The unchanged clients of one environment, on any servers.

A program: it reads the servers' URLs from its standard input and prints what works, one line of JSON each. What a
client cannot do is a result, not an error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

import anyio

from integration.servers import DEADLINE, ERAS, FRAMEWORKS, Cell
from integration.serving import Peer, peer

from .host import label

UNCHANGED: Final = "U"
DRAFT: Final = "D"


@dataclass(frozen=True)
class Result:
    """What one client can do with one server."""

    client: str  # name, version and era
    server: str  # as named by `host.name`
    works: str  # the marks of what works, in order


async def is_unchanged(client: Peer) -> bool:
    """Whether all calls of a client that knows nothing of sessions are in one session, with its state."""
    first = await client.tool("whoami")
    return first.startswith("ses_") and [await client.tool("count") for _ in range(2)] == ["1", "2"]


async def holds_several(client: Peer) -> bool:
    """Whether the client can create sessions by its own means, use them separately, and end them."""
    one, two = await client.create(), await client.create()
    counted = [await client.tool("count", held) for held in (one, two, one)]
    await client.delete(one)
    return counted == ["1", "1", "2"]


TRIALS: Final[Mapping[str, Callable[[Peer], Awaitable[bool]]]] = {UNCHANGED: is_unchanged, DRAFT: holds_several}


async def works(client: Peer, mark: str) -> str:
    """Return the mark if its trial works."""
    try:
        return mark if await TRIALS[mark](client) else ""
    except Exception as error:  # noqa: BLE001  # any error means that it does not work
        print(f"{mark}: {type(error).__name__}: {error}", file=sys.stderr)
        return ""


def clients(frameworks: Sequence[str]) -> dict[str, Cell]:
    """Return the clients of these frameworks by name: in their default settings, then with what is not the default."""
    return {
        label(framework) + ("" if modern is max(ERAS) else ', `mode="legacy"`'): Cell(framework, modern)
        for framework in frameworks
        for modern in reversed(ERAS)
    }


async def visit(urls: Mapping[str, str], frameworks: Sequence[str]) -> None:
    """Print what each client can do with each server."""
    for client, cell in clients(frameworks).items():
        for server, url in urls.items():
            with anyio.fail_after(DEADLINE):
                async with peer(cell, url) as connected:
                    marks = [await works(connected, mark) for mark in TRIALS]
            print(json.dumps(asdict(Result(client, server, "".join(marks)))))


def main() -> None:
    """Run the program; its arguments choose among the frameworks of its environment."""
    frameworks = [framework for framework in FRAMEWORKS if framework in (sys.argv[1:] or FRAMEWORKS)]
    anyio.run(visit, json.load(sys.stdin), frameworks)
