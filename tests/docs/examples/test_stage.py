"""`stage`: exchanges that are shown and compared."""

from __future__ import annotations

import io

import pytest
from example_servers import connected

from session_client import HeldSession
from stage import Differs, Server, outcome, shown, together
from timeline import Timeline


async def test_an_exchange_as_expected_is_shown() -> None:
    """A line shows the request, the session's letter and the result, and never the session's id."""
    shown_lines = io.StringIO()
    async with connected("notebook") as client:
        server = Server("notebook", client, Timeline(shown_lines, clock=lambda: 0.0))
        assert server.advertised["required"] == "some"
        await server.create("A")
        await server.call("A", "append", note="milk", expected='["milk"]')
        await server.call_without("read", expected="refused: -31044 Session required")
        await server.delete("A")
    lines = [line.split(maxsplit=3)[3] for line in shown_lines.getvalue().splitlines()]
    assert [" ".join(line.split()) for line in lines] == [
        "A sessions/create -> a new session",
        'A append("milk") -> ["milk"]',
        "- read() -> refused: -31044 Session required",
        "A sessions/delete -> deleted",
    ]


async def test_an_exchange_that_differs_is_shown_and_stops() -> None:
    """The error names the place, what was expected and what came."""
    lines = io.StringIO()
    async with connected("counter") as client:
        server = Server("counter", client, Timeline(lines, clock=lambda: 0.0))
        await server.create("A")
        with pytest.raises(Differs, match=r"counter, session A, count\(\): expected 5, and got 1"):
            await server.call("A", "count", expected="5")
    assert lines.getvalue().endswith("-> 1\n")


async def test_calls_without_a_session_show_their_answer() -> None:
    """A server that needs no session answers without one."""
    async with connected("counter") as client:
        await Server("counter", client, Timeline(io.StringIO())).call_without("count", expected="1")


async def test_the_outcome_of_a_failed_tool_is_its_message() -> None:
    """A failure is an outcome like any other."""
    async with connected("notebook") as client:
        session = await HeldSession.create(client)
        assert (await outcome(session.call("append"))).startswith("failed: ")


async def test_parallel_actions_keep_their_order() -> None:
    """Outcomes, refusals among them, stand in the order of the actions."""
    async with connected("counter") as client:
        server = Server("counter", client, Timeline(io.StringIO()))
        await server.create("A")
        await server.create("B")
        await server.delete("B")
        outcomes = await together([server.repeat("A", "count", 2), server.repeat("B", "count", 1)])
    assert outcomes == ["[1, 2]", "refused: -32043 Session not found"]


def test_a_call_is_shown_as_it_would_be_written() -> None:
    """A shown call has the name of the tool, and its arguments as JSON."""
    assert shown("append", {"note": 'a "b"'}) == 'append("a \\"b\\"")'
