"""Arguments and results are on a call's span only where an application says how, and never with a session in them."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from apps import Server, sessions
from clients import Client
from opentelemetry.sdk.trace import ReadableSpan

from mcp_sessions.telemetry._core import Content, Redact

NAMES = ("gen_ai.tool.call.arguments", "gen_ai.tool.call.result")


def whole(what: Content, tool: str, value: Any) -> Any:
    return value


async def called(spans: list[ReadableSpan], redact: Redact | None, tool: str = "remember") -> list[Any]:
    """What the span of a call says of its contents; the session is looked for in it."""
    client = Client(sessions(Server(), redact=redact))
    held = await client.create()
    await client.tool(tool, session=held, card="4111")
    (span,) = [span for span in spans if span.name == f"tools/call {tool}"]
    assert held["sessionId"] not in span.to_json()
    assert "io.modelcontextprotocol" not in span.to_json()
    return [(span.attributes or {}).get(name) for name in NAMES]


async def test_nothing_is_written_unless_it_is_asked_for(spans: list[ReadableSpan]) -> None:
    assert await called(spans, None) == [None, None]


async def test_what_the_function_gives_is_written_as_json(spans: list[ReadableSpan]) -> None:
    assert await called(spans, whole) == ['{"card": "4111"}', '{"content": {"card": "4111"}}']


async def test_the_function_knows_what_it_is_and_whose(spans: list[ReadableSpan]) -> None:
    def redact(what: Content, tool: str, value: Any) -> Any:
        return f"{tool}: {len(value)}" if what == "arguments" else None

    assert await called(spans, redact) == ["remember: 1", None]


async def test_a_function_that_fails_writes_nothing_and_the_call_goes_on(
    spans: list[ReadableSpan], caplog: pytest.LogCaptureFixture
) -> None:
    def redact(what: Content, tool: str, value: Any) -> Any:
        raise LookupError(str(value))

    with caplog.at_level(logging.WARNING, "mcp_sessions"):
        assert await called(spans, redact) == [None, None]
    levels = [record.levelno for record in caplog.records if "at a restart" not in record.getMessage()]
    assert levels == [logging.WARNING] * 2
    assert "4111" not in caplog.text


async def test_other_messages_and_errors_say_nothing(spans: list[ReadableSpan]) -> None:
    """A list has no arguments worth the name, a call may have none, and what is strange is left to the server."""
    client = Client(sessions(Server(), redact=whole))
    await client.send("tools/list")
    await client.send("tools/call", {"name": "whoami"})
    await client.send("tools/call", {"name": "whoami", "arguments": [1]})
    written = [[(span.attributes or {}).get(name) for name in NAMES] for span in spans]
    assert written == [[None, None], [None, '{"content": "nobody"}'], ["[1]", '{"content": "nobody"}']]
