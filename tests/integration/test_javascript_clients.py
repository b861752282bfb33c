"""The official TypeScript clients, unchanged and with the example `sessions.ts`, and the MCP Inspector."""

import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.types import ASGIApp

from mcp_sessions.events import EndedSession

from . import javascript
from .event_store import keeping_events, with_events
from .javascript import Exchange, Visit, packages
from .servers import FASTMCP, SDK, Cell, Hall, bare, wrapped
from .serving import serving

LEGACY = ("typescript 1", "typescript 2")
EVERY = (*LEGACY, "typescript 2 modern")
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "sessions.ts"
STATELESS, STATEFUL = Cell(SDK), Cell(SDK, stateful=True)

Visiting = Callable[..., Awaitable[list[Visit]]]


@pytest.fixture
def visit(tmp_path: Path) -> Visiting:
    """Let clients visit an application at once, and return what each saw."""
    folder = packages()

    async def visit(app: ASGIApp, clients: tuple[str, ...], *steps: Any, wrapper: Path | None = None) -> list[Visit]:
        async with serving(app) as url:
            return await javascript.visits(folder, tmp_path, clients, url, *steps, wrapper=wrapper)

    return visit


def as_shipped(cell: Cell, **options: Any) -> ASGIApp:
    """Wrap the small server with the default transport sessions."""
    return wrapped(cell, transport="auto", **options)


@pytest.mark.parametrize(
    ("cell", "options"), [(STATELESS, {"keys": None}), (STATEFUL, {})], ids=["random keys", "transport sessions"]
)
async def test_without_sessions_of_ours_clients_see_the_bare_server(
    cell: Cell, options: dict[str, Any], visit: Visiting
) -> None:
    """In both eras: where keys die with the process, and on a server that has transport sessions of its own."""
    calls = ["call", "whoami"], ["call", "whoami_sync"]
    steps = (["list"], *calls, ["resume"], calls[0], ["end"], calls[0])
    ours, own = [await visit(app, EVERY, *steps) for app in (as_shipped(cell, **options), bare(cell))]
    for seen, expected in zip(ours, own, strict=True):
        assert (seen.results, {*seen.exchanges}) == (expected.results, {*expected.exchanges})
        assert {"whoami", "count"} <= {*seen.results[0]}
        assert seen.results[1:-1] == ["nobody", "nobody", True, "nobody", True]
    assert (Exchange("POST", 404, 0, None) in ours[0].exchanges) is cell.stateful


async def test_each_run_of_the_inspector_has_its_own_session(tmp_path: Path) -> None:
    folder = packages()

    async def inspect(*arguments: str) -> Any:
        options = ("--cli", url, "--transport", "http", "--format", "json", "--quiet", *arguments)
        return json.loads(await javascript.run(folder, tmp_path, "mcp-inspector", *options))["result"]

    whoami = ("--method", "tools/call", "--tool-name", "whoami")
    async with serving(as_shipped(STATELESS)) as url:
        tools = (await inspect("--method", "tools/list"))["tools"]
        runs = (whoami, whoami, (*whoami, "--protocol-era", "auto"))  # in which Node keeps no cookies
        first, second, modern = [(await inspect(*run))["content"][0]["text"] for run in runs]
    assert {"whoami", "count"} <= {tool["name"] for tool in tools}
    assert modern == "nobody"
    assert len({first, second, "nobody"}) == 3


@pytest.mark.parametrize("cell", [STATELESS, Cell(SDK, json=True)], ids=str)
async def test_an_unchanged_client_has_a_session(cell: Cell, visit: Visiting) -> None:
    """But in the modern era, which has no transport sessions, and Node keeps no cookies."""
    steps = (["call", "whoami"], ["call", "whoami_sync"], ["resume"], ["call", "whoami"])
    *legacy, modern = await visit(as_shipped(cell), EVERY, *steps)
    assert len({*(seen.results[0] for seen in legacy), "nobody"}) == 3
    for seen in legacy:
        assert seen.results == [seen.results[0], seen.results[0], True, seen.results[0]]
        first, *others = seen.exchanges
        assert first == Exchange("POST", 200, None, 0)
        assert {exchange.sent for exchange in others} == {0}
        assert {exchange.named for exchange in others} <= {None, 0}
        # The client asks for a stream at once, which would stay open for its life, and works without one.
        assert (seen.statuses("GET"), seen.troubles) == ({405}, [])
    assert modern.results == ["nobody", "nobody", True, "nobody"]
    assert {exchange.named for exchange in modern.exchanges} == {None}


async def test_an_unchanged_client_behind_the_bridge_has_a_session(visit: Visiting) -> None:
    """Behind the bridge the client has the server's streams, and sees our id until it ends its session."""
    steps = (["call", "whoami"], ["call", "count"], ["resume"], ["call", "count"], ["end"], ["call", "count"])
    visits = await visit(as_shipped(STATEFUL, bridge=True), LEGACY, *steps)
    assert len({*(seen.results[0] for seen in visits), "nobody"}) == 3
    for seen in visits:
        assert seen.results[1:5] == ["1", True, "2", True]
        assert seen.results[5].startswith("failed: ")
        assert {exchange.named for exchange in seen.exchanges} <= {None, 0}
        assert (seen.statuses("GET"), seen.statuses("DELETE")) == ({200}, {200})
        assert seen.exchanges[-1] == Exchange("POST", 404, 0, None)


@pytest.mark.parametrize("client", LEGACY)
@pytest.mark.parametrize("is_behind", [False, True], ids=["bare", "behind the bridge"])
async def test_a_client_that_comes_back_for_its_result_gets_it(client: str, is_behind: bool, visit: Visiting) -> None:
    """The server ends the stream of a call in the middle, and the state is open until the client has resumed it."""
    hall = Hall()
    hall.open()
    app = with_events(STATEFUL, hall, bridge=True) if is_behind else keeping_events(STATEFUL, hall)
    [seen] = await visit(app, (client,), ["call", "count"], ["call", "poll"], ["call", "count"])
    assert seen.results == (["1", "2", "3"] if is_behind else ["nobody"] * 3)
    assert (seen.statuses("GET"), seen.troubles) == ({200}, [])


async def test_a_client_of_the_modern_era_falls_back_to_the_handshake(visit: Visiting) -> None:
    app = as_shipped(STATELESS, era="legacy")
    [seen] = await visit(app, EVERY[-1:], ["call", "whoami"], ["call", "count"], ["call", "count"])
    assert seen.results[0].startswith("ses_")
    assert seen.results[1:] == ["1", "2"]
    assert seen.troubles == []
    assert {exchange.named for exchange in seen.exchanges} == {None, 0}


# --- with the example, by the draft --------------------------------------------------------------


@pytest.mark.parametrize("cell", [Cell(FASTMCP), STATEFUL], ids=str)
async def test_all_calls_go_in_one_session_which_is_deleted_at_the_end(cell: Cell, visit: Visiting) -> None:
    """The parallel first calls share the session, state goes back and forth, and closing the client ends it."""
    ended: list[str] = []

    def note(session: EndedSession, reason: str) -> None:
        ended.append(f"{session.ref} {reason}")

    steps = (["list"], ["together", "whoami"], ["call", "count"], ["call", "count"])
    visits = await visit(as_shipped(cell, on_end=note), EVERY, *steps, wrapper=EXAMPLE)
    refs = [seen.results[1][0] for seen in visits]
    assert len({*refs, "nobody"}) == 1 + len(EVERY)
    for seen, ref in zip(visits, refs, strict=True):
        assert "whoami" in seen.results[0]
        assert seen.results[1:] == [[ref] * 3, "1", "2"]
        assert seen.troubles == []
    assert sorted(ended) == sorted(f"{ref} deleted" for ref in refs)


async def test_a_lost_session_is_an_error_and_then_a_new_one(visit: Visiting) -> None:
    steps = (["call", "count"], ["call", "leave"], ["call", "count"], ["call", "count"], ["call", "count"])
    for seen in await visit(as_shipped(STATELESS), EVERY, *steps, wrapper=EXAMPLE):
        first, left, lost, *others = seen.results
        assert (first, left.endswith(" left"), others) == ("1", True, ["1", "2"])
        assert lost.startswith("failed: ")
        assert "Session not found" in lost


async def test_a_server_without_sessions_works_as_before(visit: Visiting) -> None:
    for seen in await visit(bare(STATELESS), EVERY, ["list"], ["together", "whoami"], wrapper=EXAMPLE):
        assert seen.results[1] == ["nobody"] * 3
        assert seen.troubles == []


async def test_a_refusal_to_create_a_session_is_the_error_of_the_call(visit: Visiting) -> None:
    now = time.time()  # and stays so: a minute that begins has room for one more
    app = as_shipped(STATELESS, create_limit=1, clock=lambda: now)
    visits = await visit(app, EVERY, ["call", "whoami"], wrapper=EXAMPLE)
    assert sorted(seen.results[0].startswith("failed: ") for seen in visits) == [False, True, True]
