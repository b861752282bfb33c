"""Servers of their own, on every loop: put under load, watched by a crowd, and soaked. No figure of speed is judged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import anyio
import pytest

import debian
from environments import require

require("mcp>=2")

from benchmarks import apps, census, command, network, served, soak
from benchmarks.size import SIZES
from benchmarks.traffic import Answer, Visits, message

TINY = SIZES["tiny"]


def rows(all_of_them: Sequence[network.Serving], *names: str) -> list[network.Serving]:
    """Some of them, each held against itself."""
    return [replace(row, base=row.name) for row in all_of_them if row.name in names]


# --- under load ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "table", "names"),
    [
        ("http", "ROWS", ["ours, no session named", "ours, session"]),
        ("loops", "LOOPS", ["uvicorn, uvloop: pass-through", "hypercorn, trio: ours, session"]),
    ],
)
def test_servers_are_put_under_load(
    section: str, table: str, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some of them, for a second each; the others differ by a name in a table."""
    debian.install("wrk")
    monkeypatch.setattr(network, table, rows(getattr(network, table), *names))
    report = command.run(section, TINY)
    assert [[row[0] for row in found.rows] for found in report.tables] == [names] * len(report.tables)
    assert all(0 < value < math.inf for name, value in report.figures.items() if name.endswith("/us"))


def test_a_cookie_is_sent_to_who_reads_it() -> None:
    """So that what it takes to read one is in the time."""
    (row,) = rows(network.ROWS, "Starlette SessionMiddleware, read")
    assert network.request(row, 0, {"cookie": "session=x"}).all_headers()["cookie"] == "session=x"


def test_every_server_can_be_made() -> None:
    """Whatever stands around whatever application."""
    assert all(callable(around(make())) for make in served.APPS.values() for around in served.AROUND.values())


def test_a_load_generator_that_is_missing_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing is measured."""
    monkeypatch.setenv("PATH", "")
    assert command.run("loops", TINY).tables[0].text().strip() == network.MISSING


# --- streams, and whatever else ------------------------------------------------------------------


def test_a_crowd_watches_its_streams() -> None:
    """Every event of every stream arrives, without us and with us, and others are served meanwhile."""
    report = command.run("crowd", TINY)
    assert {name.split("/")[1] for name in report.figures} == {"pass-through", "ours, session"}
    assert all(value > 0 for name, value in report.figures.items() if "stream" not in name)


def test_nothing_stays_of_what_clients_leave() -> None:
    """After ten seconds of it no task and no descriptor is left; the slope of the memory is printed."""
    report = command.run("soak", replace(TINY, soak=10))
    assert report.figures["soak/requests"] > len(soak.VISITS)
    assert report.figures["soak/tasks more"] <= 0
    assert report.figures["soak/descriptors more"] <= 0


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_server_that_is_still_busy_is_counted_again(
    anyio_backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And at last as it is, so that a leak is seen."""
    counts = [dict.fromkeys(soak.COUNTED, number) for number in (3, 3, 1)]
    first = counts[2]
    monkeypatch.setattr(soak, "PAUSE", 0)
    monkeypatch.setattr(soak, "census", lambda _: counts.pop(0))
    assert await soak.settled(0, first) == first
    counts[:] = [dict.fromkeys(soak.COUNTED, 3) for _ in range(1 + soak.SETTLING)]
    assert (await soak.settled(0, first))["tasks"] == 3


# --- applications --------------------------------------------------------------------------------


async def tool(name: str, **arguments: float) -> Answer:
    visits = Visits.of(census.Census(apps.tools), message(params={"name": name, "arguments": arguments}))
    return await visits.answer()


async def test_the_tools_do_what_they_are_for() -> None:
    """One answers, one streams, and one waits for its client to go."""
    assert apps.TEXT.encode() in (await tool("echo")).body
    assert (await tool("watch", events=2, pause=0)).body.count(b"\r\n\r\n") == 3
    with anyio.move_on_after(0) as waited:
        await tool("wait")
    assert waited.cancelled_caught


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_server_counts_itself(anyio_backend: str) -> None:
    """At a path of its own."""
    visits = Visits.of(census.Census(apps.trivial), b"")
    visits.scope["path"] = census.PATH
    assert b'"tasks"' in (await visits.answer()).body
