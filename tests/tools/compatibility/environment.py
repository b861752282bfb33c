"""The servers and the unchanged clients of one environment, each in a program of its own.

`host` prints one line of JSON, the URL of each server, and serves until its standard input ends. `visit` reads the URLs
of servers of any environment and prints what works, one line of JSON each: what a client cannot do is a result, not an
error. The arguments of both choose among the frameworks of the environment.
"""

import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from itertools import product
from typing import Final

import anyio

from integration.servers import DEADLINE, ERAS, FRAMEWORKS, Cell, wrapped
from integration.serving import Peer, peer, serving

UNCHANGED: Final = "U"
DRAFT: Final = "D"
DISTRIBUTIONS: Final = {"sdk": ("mcp", "SDK"), "fastmcp": ("fastmcp", "FastMCP")}
CHOSEN: Final = [framework for framework in FRAMEWORKS if framework in (sys.argv[1:] or FRAMEWORKS)]


def label(framework: str) -> str:
    """Return the name and the installed version of a framework, as in the table."""
    distribution, name = DISTRIBUTIONS[framework.rstrip("0123456789")]
    return f"{name} {version(distribution)}"


async def _host() -> None:
    """Serve each framework in each mode, stateful servers behind the bridge; clients choose the era."""
    async with AsyncExitStack() as stack:
        urls = {}
        for framework, stateful, as_json in product(CHOSEN, (True, False), (True, False)):
            name = f"{label(framework)}|{'stateful' if stateful else 'stateless'}|{'JSON' if as_json else 'SSE'}"
            app = wrapped(Cell(framework, False, stateful, as_json), transport="auto", bridge=stateful)
            urls[name] = await stack.enter_async_context(serving(app))
        print(json.dumps(urls), flush=True)
        await anyio.to_thread.run_sync(sys.stdin.read)


@dataclass(frozen=True)
class Result:
    """What one client can do with one server."""

    client: str  # name, version and era
    server: str  # as named by `host`
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


async def _visit() -> None:
    """Print what each client can do with each server, in its default settings and in those that are not the default."""
    urls: dict[str, str] = json.load(sys.stdin)
    for framework in CHOSEN:
        for modern in reversed(ERAS):
            name = label(framework) + ("" if modern is max(ERAS) else ', `mode="legacy"`')
            for server, url in urls.items():
                with anyio.fail_after(DEADLINE):
                    async with peer(Cell(framework, modern), url) as client:
                        marks = [await works(client, mark) for mark in TRIALS]
                print(json.dumps(asdict(Result(name, server, "".join(marks)))))


host, visit = partial(anyio.run, _host), partial(anyio.run, _visit)
