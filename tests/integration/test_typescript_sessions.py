"""The example `sessions.ts`: sessions by the draft for the official TypeScript clients, over real HTTP."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import anyio
import pytest
from starlette.types import ASGIApp

from mcp_sessions import EndedSession

from . import javascript
from .javascript import DEADLINE, Failed, Visit, packages
from .servers import CELLS, Cell, bare, wrapped
from .serving import serving

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "sessions.ts"
CLIENTS = ("typescript 1", "typescript 2", "typescript 2 modern")
CELL = next(cell for cell in CELLS if not (cell.stateful or cell.modern or cell.json))
JSON = next(cell for cell in CELLS if cell.json and not (cell.stateful or cell.modern))
STATEFUL = next(cell for cell in CELLS if cell.stateful and not (cell.modern or cell.json))

pytestmark = pytest.mark.parametrize("anyio_backend", ["asyncio"])  # Uvicorn runs on asyncio alone


async def visits(app: ASGIApp, home: Path, *steps: Any) -> list[Visit]:
    """Let all clients visit a server at once with sessions of their own, and return what each saw."""
    folder, seen = packages(), dict[str, Visit]()
    with anyio.fail_after(2 * DEADLINE):
        async with serving(app) as url, anyio.create_task_group() as tasks:

            async def visit(client: str) -> None:
                seen[client] = await javascript.visit(folder, home, client, url, *steps, wrapper=EXAMPLE)

            for client in CLIENTS:
                tasks.start_soon(visit, client)
    return [seen[client] for client in CLIENTS]


@pytest.mark.parametrize("cell", [CELL, JSON, STATEFUL], ids=str)
async def test_all_calls_go_in_one_session_which_is_deleted_at_the_end(cell: Cell, tmp_path: Path) -> None:
    """The parallel first calls share the session, state goes back and forth, and closing the client ends it."""
    ended: list[str] = []

    def note(session: EndedSession, reason: str) -> None:
        ended.append(f"{session.ref} {reason}")

    app = wrapped(cell, transport="auto", on_end=note)
    seen = await visits(app, tmp_path, ["list"], ["together", "whoami"], ["call", "count"], ["call", "count"])
    refs = [visit.results[1][0] for visit in seen]
    assert len({*refs, "nobody"}) == 1 + len(CLIENTS)
    for visit, ref in zip(seen, refs, strict=True):
        assert "whoami" in visit.results[0]
        assert visit.results[1:] == [[ref] * 3, "1", "2"]
        assert visit.troubles == []
    assert sorted(ended) == sorted(f"{ref} deleted" for ref in refs)


async def test_a_lost_session_is_an_error_and_then_a_new_one(tmp_path: Path) -> None:
    steps = (["call", "count"], ["call", "leave"], ["call", "count"], ["call", "count"], ["call", "count"])
    for visit in await visits(wrapped(CELL, transport="auto"), tmp_path, *steps):
        first, left, lost, *others = visit.results
        assert (first, left.endswith(" left"), others) == ("1", True, ["1", "2"])
        assert isinstance(lost, Failed)
        assert "Session not found" in lost.why


async def test_a_server_without_sessions_works_as_before(tmp_path: Path) -> None:
    for visit in await visits(bare(CELL), tmp_path, ["list"], ["together", "whoami"]):
        assert visit.results[1] == ["nobody"] * 3
        assert visit.troubles == []


async def test_a_refusal_to_create_a_session_is_the_error_of_the_call(tmp_path: Path) -> None:
    now = time.time()  # and stays so: a minute that begins has room for one more
    app = wrapped(CELL, transport="auto", create_limit=1, clock=lambda: now)
    seen = await visits(app, tmp_path, ["call", "whoami"])
    results = [visit.results[0] for visit in seen]
    assert sorted(isinstance(result, Failed) for result in results) == [False, True, True]
