"""The modules that the examples share."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import example_servers  # noqa: F401  # makes the examples importable
import pytest
from example_servers import EXAMPLES, connected
from mcp import Client

from server_process import DidNotStart, serving
from session_client import KEY, HeldSession, ToolFailed
from stage import Differs, Server, outcome, together
from timeline import Timeline


def carried(session: HeldSession) -> dict[str, Any]:
    """Return the metadata that a session sends."""
    metadata: dict[str, Any] = dict(session.meta)[KEY]  # type: ignore[assignment]
    return metadata


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def written(stream: io.StringIO) -> str:
    """Write every kind of line once, two seconds after the start."""
    timeline = Timeline(stream, clock=iter([10.0, 12.0, 12.0, 12.0]).__next__)
    timeline.title("A title")
    timeline.source("a = 1")
    timeline.event("server", "is up")
    timeline.exchange("server", "A", "read()", "[]")
    timeline.exchange("server", "A", "read()", "refused: -1")
    timeline.end("The end.", good=False)
    timeline.end("The good end.", good=True)
    return stream.getvalue()


PLAIN = """
A title
    a = 1
  2.00 s  server       is up
  2.00 s  server    A  read()                     -> []
  2.00 s  server    A  read()                     -> refused: -1

The end.

The good end.
"""


class TestSessionClient:
    """`session_client`: sessions held with the official SDK's client."""

    async def test_the_last_state_is_sent(self) -> None:
        """A call may replace the state, a call without a new state keeps it, and the id never changes."""
        async with connected("notebook") as client:
            session = await HeldSession.create(client)
            created = carried(session)
            await session.call("append", note="a note")
            written = carried(session)
            await session.call("read")
            assert sorted(written) == ["sessionId", "state"]
            assert written["sessionId"] == created["sessionId"]
            assert carried(session)["sessionId"] == created["sessionId"]
            assert "state" in carried(session)
            assert await session.call("read") == ["a note"]

    async def test_a_failed_tool_raises_its_message(self) -> None:
        """A failed tool raises another error than a refused call."""
        async with connected("notebook") as client:
            session = await HeldSession.create(client)
            with pytest.raises(ToolFailed, match="note"):
                await session.call("append")


class TestServerProcess:
    """`server_process`: a server in a process of its own."""

    @pytest.mark.parametrize("anyio_backend", ["asyncio"])  # each process takes seconds to start
    async def test_a_restarted_server_knows_its_sessions(self) -> None:
        """A session goes on in another process with the same address and keys."""
        async with serving("counter", EXAMPLES) as server:
            await server.ready()
            before = (server.pid, server.url)
            async with Client(server.url) as client:
                session = await HeldSession.create(client)
                assert await session.call("count") == 1
                await server.end()
                await server.launch()
                await server.ready()
                assert await session.call("count") == 2
            assert server.url == before[1]
            assert server.pid != before[0]

    @pytest.mark.parametrize("anyio_backend", ["asyncio"])
    async def test_a_failed_start_reports_why(self, tmp_path: Path) -> None:
        (tmp_path / "broken.py").write_text("raise ValueError('the reason')", "utf-8")
        with pytest.raises(DidNotStart, match=r"(?s)broken did not start:.*the reason"):
            async with serving("broken", tmp_path) as server:
                await server.ready()


class TestStage:
    """`stage`: exchanges that are shown and compared."""

    async def test_an_exchange_as_expected_is_shown(self) -> None:
        """A line shows the request, the session's letter and the result, and never the session's id."""
        shown_lines = io.StringIO()
        async with connected("notebook") as client:
            server = Server("notebook", client, Timeline(shown_lines, clock=lambda: 0.0))
            assert server.advertised["required"] == "some"
            await server.create("A")
            await server.call("A", "append", note="milk", expected='["milk"]')
            await server.call_without("read", expected="[]")  # in the session of the client's cookie
            await server.delete("A")
        lines = [line.split(maxsplit=3)[3] for line in shown_lines.getvalue().splitlines()]
        assert [" ".join(line.split()) for line in lines] == [
            "A sessions/create -> a new session",
            'A append("milk") -> ["milk"]',
            "- read() -> []",
            "A sessions/delete -> deleted",
        ]

    async def test_an_exchange_that_differs_is_shown_and_stops(self) -> None:
        """The error names the place, what was expected and what came."""
        lines = io.StringIO()
        async with connected("counter") as client:
            server = Server("counter", client, Timeline(lines, clock=lambda: 0.0))
            await server.create("A")
            with pytest.raises(Differs, match=r"counter, session A, count\(\): expected 5, and got 1"):
                await server.call("A", "count", expected="5")
        assert lines.getvalue().endswith("-> 1\n")

    async def test_the_outcome_of_a_failed_tool_is_its_message(self) -> None:
        async with connected("notebook") as client:
            session = await HeldSession.create(client)
            assert (await outcome(session.call("append"))).startswith("failed: ")

    async def test_parallel_actions_keep_their_order(self) -> None:
        """Outcomes, refusals among them, stand in the order of the actions."""
        async with connected("counter") as client:
            server = Server("counter", client, Timeline(io.StringIO()))
            await server.create("A")
            await server.create("B")
            await server.delete("B")
            outcomes = await together([server.repeat("A", "count", 2), server.repeat("B", "count", 1)])
        assert outcomes == ["[1, 2]", "refused: -32043 Session not found"]


class TestTimeline:
    """`timeline`: the lines that demos print."""

    def test_a_file_gets_plain_text(self) -> None:
        """A stream that is not a terminal gets no colours."""
        assert written(io.StringIO()) == PLAIN

    def test_a_terminal_gets_colours(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("NO_COLOR", raising=False)
        text = written(Terminal())
        assert "\x1b[32m[]\x1b[0m" in text
        assert "\x1b[33mrefused: -1\x1b[0m" in text

    def test_no_color_is_honoured(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A terminal gets no colours where NO_COLOR is set."""
        monkeypatch.setenv("NO_COLOR", "1")
        assert written(Terminal()) == PLAIN
