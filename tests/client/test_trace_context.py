"""The client's own requests belong to the program's trace, as the SDK's own do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from opentelemetry import baggage, context
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState, set_span_in_context

from .scripted import Server, plain, talk
from .test_extensions import offering

TRACE = "0af7651916cd43dd8448eb211c80319c"
CARRIED = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01", "tracestate": "vendor=1", "baggage": "who=ann"}


@contextmanager
def traced() -> Iterator[None]:
    """A span of the program's, with a vendor's state and baggage."""
    span = SpanContext(int(TRACE, 16), 0xB7AD6B7169203331, False, TraceFlags(1), TraceState([("vendor", "1")]))
    token = context.attach(baggage.set_baggage("who", "ann", set_span_in_context(NonRecordingSpan(span))))
    try:
        yield
    finally:
        context.detach(token)


def metas(server: Server) -> dict[str, Any]:
    """The trace context in each request that is ours, by its method."""
    sent = [message for message in map(plain, server.received) if str(message.get("id")).startswith("mcp-sessions-")]
    found = {message["method"]: message.get("params", {}).get("_meta", {}) for message in sent}
    return {method: {name: value for name, value in meta.items() if name in CARRIED} for method, meta in found.items()}


@pytest.mark.parametrize("modern", [False, True], ids=["legacy", "modern"])
async def test_requests_of_our_own_carry_the_current_trace_context(modern: bool) -> None:
    server = offering()
    async with talk(server, modern=modern, greet=not modern) as (sessions, caller):
        with traced():
            await caller.ask("tools/call")
            fork = await sessions.fork()
            await sessions.list()
            for session in (fork, sessions.open("")):
                await sessions.delete(session)
    methods = {f"sessions/{name}" for name in ("create", "fork", "list", "delete")}
    assert metas(server) == dict.fromkeys(methods | ({"server/discover"} if modern else set()), CARRIED)


async def test_without_a_span_there_is_no_trace_context() -> None:
    server = offering()
    async with talk(server) as (_, caller):
        await caller.ask("tools/call")
    assert metas(server) == {"sessions/create": {}, "sessions/delete": {}}


PROGRAM = """
import sys
from dataclasses import dataclass
from mcp_sessions.client import _messages as messages

@dataclass
class Message:
    jsonrpc: str
    id: str
    method: str
    params: object

@dataclass
class Item:
    message: object
    metadata: object = None

made = messages.request(Item(Message("2.0", "1", "initialize", None)), "2", "sessions/create", {}, None)
assert made.message.params == {}, made
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
"""


def test_without_opentelemetry_none_of_it_is_imported() -> None:
    assert subprocess.run([sys.executable, "-c", PROGRAM], check=False).returncode == 0
