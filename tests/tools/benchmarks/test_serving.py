"""Servers of their own, on every loop, and a soak. No figure of speed is judged."""

from __future__ import annotations

from dataclasses import replace

import anyio
import pytest
from environments import require

require("mcp>=2")

from benchmarks import apps, command, ours, served, soak, wire
from benchmarks.size import SIZES
from benchmarks.timing import ECHOED
from benchmarks.traffic import Answer, Visits, message

TINY = SIZES["tiny"]


@pytest.mark.parametrize("server", served.SERVERS)
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_session_is_used_on_every_server_and_loop(anyio_backend: str, server: str) -> None:
    """Over real connections, on trio, too."""
    with wire.served(server) as port:
        named = message(session={"sessionId": await wire.begun(port)})
        assert ECHOED in await wire.ask(port, wire.raw(named))


def test_nothing_stays_of_what_clients_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """After some of it no task and no descriptor is left; the slope of the memory is printed."""
    monkeypatch.setattr(soak, "PARTS", 4)
    report = command.run("soak", replace(TINY, soak=2))
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

    async def census(port: int) -> dict[str, int]:
        return counts.pop(0)

    monkeypatch.setattr(soak, "PAUSE", 0)
    monkeypatch.setattr(soak, "census", census)
    assert await soak.settled(0, first) == first
    counts[:] = [dict.fromkeys(soak.COUNTED, 3) for _ in range(1 + soak.SETTLING)]
    assert (await soak.settled(0, first))["tasks"] == 3


async def tool(name: str, **arguments: float) -> Answer:
    visits = Visits.of(served.Census(apps.tools), message(params={"name": name, "arguments": arguments}))
    return await visits.answer()


async def test_the_tools_do_what_they_are_for() -> None:
    """One answers, one streams, and one waits for its client to go."""
    assert apps.TEXT.encode() in (await tool("echo")).body
    assert (await tool("watch", events=2, pause=0)).body.count(b"\r\n\r\n") == 3
    with anyio.move_on_after(0) as waited:
        await tool("wait")
    assert waited.cancelled_caught


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_server_counts_what_it_holds(anyio_backend: str) -> None:
    """At a path of its own."""
    visits = Visits.of(served.Census(ours.caching(apps.trivial, 64)), b"")
    visits.scope["path"] = served.CENSUS
    assert b'"tasks"' in (await visits.answer()).body
