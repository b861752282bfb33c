"""The official TypeScript clients, unchanged and with the example `sessions.ts`, and the MCP Inspector."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import anyio
import pytest
from starlette.types import ASGIApp

from mcp_sessions import EndedSession

from . import javascript
from .event_store import keeping_events, with_events
from .javascript import DEADLINE, Exchange, Failed, Visit, packages
from .servers import CELLS, Cell, Hall, bare, wrapped
from .serving import serving

LEGACY = ("typescript 1", "typescript 2")
EVERY = (*LEGACY, "typescript 2 modern")

STATELESS = [cell for cell in CELLS if not (cell.stateful or cell.modern)]
STATEFUL = [cell for cell in CELLS if cell.stateful and not (cell.modern or cell.json)]
STREAMING = next(cell for cell in STATELESS if not cell.json)


def as_shipped(cell: Cell, **options: Any) -> ASGIApp:
    """Wrap the small server with the default transport sessions."""
    return wrapped(cell, transport="auto", **options)


@dataclass(frozen=True)
class Served:
    """A server that is up, and the folders of the JavaScript that visits it."""

    url: str
    packages: Path
    home: Path

    async def visits(self, clients: tuple[str, ...], *steps: Any, wrapper: Path | None = None) -> list[Visit]:
        """Let all clients visit at once, and return what each saw."""
        seen: dict[str, Visit] = {}

        async def visit(client: str) -> None:
            seen[client] = await javascript.visit(self.packages, self.home, client, self.url, *steps, wrapper=wrapper)

        async with anyio.create_task_group() as tasks:
            for client in clients:
                tasks.start_soon(visit, client)
        return [seen[client] for client in clients]

    async def inspect(self, *arguments: str) -> Any:
        """Run the Inspector's command line once, and return its result."""
        options = ("--cli", self.url, "--transport", "http", "--format", "json", "--quiet", *arguments)
        return json.loads(await javascript.run(self.packages, self.home, "mcp-inspector", *options))["result"]

    async def whoami(self, *arguments: str) -> str:
        """Return the session of a tool call by the Inspector."""
        result = await self.inspect("--method", "tools/call", "--tool-name", "whoami", *arguments)
        return str(result["content"][0]["text"])


@asynccontextmanager
async def served(app: ASGIApp, home: Path) -> AsyncIterator[Served]:
    installed = packages()
    with anyio.fail_after(2 * DEADLINE):
        async with serving(app) as url:
            yield Served(url, installed, home)


TOUR = (
    ["list"],
    ["call", "whoami"],
    ["call", "whoami_sync"],
    ["resume"],
    ["call", "whoami"],
    ["end"],
    ["call", "whoami"],
)


async def toured(home: Path, *apps: ASGIApp) -> list[list[tuple[list[Any], set[Exchange]]]]:
    """Tour every application with every client at once; return the results and HTTP exchanges of each."""
    seen: dict[ASGIApp, list[Visit]] = {}

    async def tour(app: ASGIApp) -> None:
        async with served(app, home) as server:
            seen[app] = await server.visits(EVERY, *TOUR)

    async with anyio.create_task_group() as tasks:
        for app in apps:
            tasks.start_soon(tour, app)
    return [[(visit.results, set(visit.exchanges)) for visit in seen[app]] for app in apps]


async def test_without_a_lasting_key_clients_see_the_bare_server(tmp_path: Path) -> None:
    """With keys that die with the process, results and statuses are those of the bare server in both eras."""
    seen, bare_seen = await toured(tmp_path, as_shipped(STREAMING, keys=None), bare(STREAMING))
    assert seen == bare_seen
    for results, exchanges in seen:
        assert {"whoami", "count"} <= set(results[0])
        assert results[1:] == ["nobody", "nobody", True, "nobody", True, "nobody"]
        assert {(exchange.sent, exchange.named) for exchange in exchanges} == {(None, None)}


@pytest.mark.parametrize("cell", STATEFUL[:1], ids=str)
async def test_a_stateful_server_keeps_its_own_transport_sessions(cell: Cell, tmp_path: Path) -> None:
    seen, bare_seen = await toured(tmp_path, as_shipped(cell), bare(cell))
    assert seen == bare_seen
    for results, exchanges in seen[: len(LEGACY)]:
        assert results[1:-1] == ["nobody", "nobody", True, "nobody", True]
        assert isinstance(results[-1], Failed)
        assert Exchange("POST", 404, 0, None) in exchanges


async def test_each_run_of_the_inspector_has_its_own_session(tmp_path: Path) -> None:
    async with served(as_shipped(STREAMING), tmp_path) as server:
        tools = (await server.inspect("--method", "tools/list"))["tools"]
        refs = [await server.whoami() for _ in range(2)]
        assert await server.whoami("--protocol-era", "auto") == "nobody"  # Node keeps no cookies
    assert {"whoami", "count"} <= {tool["name"] for tool in tools}
    assert len({*refs, "nobody"}) == 3


@pytest.mark.parametrize("cell", STATELESS[:2], ids=str)
async def test_an_unchanged_client_has_a_session(cell: Cell, tmp_path: Path) -> None:
    steps = (["call", "whoami"], ["call", "whoami_sync"], ["call", "count"], ["resume"], ["call", "count"])
    async with served(as_shipped(cell), tmp_path) as server:
        visits = await server.visits(LEGACY, *steps, ["call", "whoami"])
    refs = [visit.results[0] for visit in visits]
    assert len({*refs, "nobody"}) == 3
    for visit, ref in zip(visits, refs, strict=True):
        assert visit.results == [ref, ref, "1", True, "2", ref]
        first, *others = visit.exchanges
        assert first == Exchange("POST", 200, None, 0)
        assert {exchange.sent for exchange in others} == {0}
        assert {exchange.named for exchange in others} <= {None, 0}
        # The client asks for a stream at once, which would stay open for its life, and works without one.
        assert (visit.statuses("GET"), visit.troubles) == ({405}, [])


@pytest.mark.parametrize("cell", STATEFUL[:1], ids=str)
async def test_an_unchanged_client_behind_the_bridge_has_a_session(cell: Cell, tmp_path: Path) -> None:
    """Behind the bridge the client has the server's streams, and sees our id until it ends its session."""
    steps = (["call", "whoami"], ["call", "count"], ["resume"], ["call", "count"], ["end"], ["call", "count"])
    async with served(as_shipped(cell, bridge=True), tmp_path) as server:
        visits = await server.visits(LEGACY, *steps)
    assert len({*(visit.results[0] for visit in visits), "nobody"}) == 3
    for visit in visits:
        assert visit.results[1:5] == ["1", True, "2", True]
        assert isinstance(visit.results[5], Failed)
        assert {exchange.named for exchange in visit.exchanges} <= {None, 0}
        assert (visit.statuses("GET"), visit.statuses("DELETE")) == ({200}, {200})
        assert visit.exchanges[-1] == Exchange("POST", 404, 0, None)


@pytest.mark.parametrize("cell", STATEFUL[:1], ids=str)
async def test_a_client_that_comes_back_for_its_result_gets_it(cell: Cell, tmp_path: Path) -> None:
    """The server ends the stream of a call in the middle, and the state is open until the client has resumed it.

    Each client has a server of its own: the store of events knows streams by request ids, which all clients share.
    """
    hall, seen = Hall(), dict[tuple[str, bool], Visit]()
    hall.open()

    async def come_back(client: str, is_behind: bool) -> None:
        app = with_events(cell, hall, bridge=True) if is_behind else keeping_events(cell, hall)
        async with served(app, tmp_path) as server:
            steps = (["call", "count"], ["call", "poll"], ["call", "count"])
            [seen[client, is_behind]] = await server.visits((client,), *steps)

    async with anyio.create_task_group() as tasks:
        for client, is_behind in product(LEGACY, (False, True)):
            tasks.start_soon(come_back, client, is_behind)
    for (_, is_behind), visit in seen.items():
        assert visit.results == (["1", "2", "3"] if is_behind else ["nobody"] * 3)
        assert (visit.statuses("GET"), visit.troubles) == ({200}, [])


async def test_a_client_of_the_modern_era_needs_no_transport_session(tmp_path: Path) -> None:
    async with served(as_shipped(STREAMING), tmp_path) as server:
        [visit] = await server.visits(("typescript 2 modern",), ["call", "whoami"])
    is_modern = any(cell.modern for cell in CELLS)
    assert (visit.results == ["nobody"]) is is_modern
    assert ({exchange.named for exchange in visit.exchanges} == {None}) is is_modern


async def test_a_client_of_the_modern_era_falls_back_to_the_handshake(tmp_path: Path) -> None:
    async with served(as_shipped(STREAMING, era="legacy"), tmp_path) as server:
        [visit] = await server.visits(
            ("typescript 2 modern",), ["call", "whoami"], ["call", "count"], ["call", "count"]
        )
    assert visit.results[0].startswith("ses_")
    assert visit.results[1:] == ["1", "2"]
    assert visit.troubles == []
    assert {exchange.named for exchange in visit.exchanges} == {None, 0}


# --- with sessions by the draft ----------------------------------------------------------------------

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "sessions.ts"


async def with_the_example(app: ASGIApp, home: Path, *steps: Any) -> list[Visit]:
    """Let all clients visit a server at once with sessions of their own, and return what each saw."""
    async with served(app, home) as server:
        return await server.visits(EVERY, *steps, wrapper=EXAMPLE)


@pytest.mark.parametrize("cell", [STATELESS[-1], STATEFUL[0]], ids=str)
async def test_all_calls_go_in_one_session_which_is_deleted_at_the_end(cell: Cell, tmp_path: Path) -> None:
    """The parallel first calls share the session, state goes back and forth, and closing the client ends it."""
    ended: list[str] = []

    def note(session: EndedSession, reason: str) -> None:
        ended.append(f"{session.ref} {reason}")

    app = as_shipped(cell, on_end=note)
    seen = await with_the_example(app, tmp_path, ["list"], ["together", "whoami"], ["call", "count"], ["call", "count"])
    refs = [visit.results[1][0] for visit in seen]
    assert len({*refs, "nobody"}) == 1 + len(EVERY)
    for visit, ref in zip(seen, refs, strict=True):
        assert "whoami" in visit.results[0]
        assert visit.results[1:] == [[ref] * 3, "1", "2"]
        assert visit.troubles == []
    assert sorted(ended) == sorted(f"{ref} deleted" for ref in refs)


async def test_a_lost_session_is_an_error_and_then_a_new_one(tmp_path: Path) -> None:
    steps = (["call", "count"], ["call", "leave"], ["call", "count"], ["call", "count"], ["call", "count"])
    for visit in await with_the_example(as_shipped(STREAMING), tmp_path, *steps):
        first, left, lost, *others = visit.results
        assert (first, left.endswith(" left"), others) == ("1", True, ["1", "2"])
        assert isinstance(lost, Failed)
        assert "Session not found" in lost.why


async def test_a_server_without_sessions_works_as_before(tmp_path: Path) -> None:
    for visit in await with_the_example(bare(STREAMING), tmp_path, ["list"], ["together", "whoami"]):
        assert visit.results[1] == ["nobody"] * 3
        assert visit.troubles == []


async def test_a_refusal_to_create_a_session_is_the_error_of_the_call(tmp_path: Path) -> None:
    now = time.time()  # and stays so: a minute that begins has room for one more
    app = as_shipped(STREAMING, create_limit=1, clock=lambda: now)
    seen = await with_the_example(app, tmp_path, ["call", "whoami"])
    results = [visit.results[0] for visit in seen]
    assert sorted(isinstance(result, Failed) for result in results) == [False, True, True]
