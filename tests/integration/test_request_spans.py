"""One server span per message, ours or the framework's, and it hangs where the caller's trace says.

The request spans are begun and ended here by a few lines that stand where the middleware's exchange stands.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from environments import require

require("opentelemetry-sdk>=1.28")

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind
from starlette.types import ASGIApp, Receive, Scope, Send

from apps import read
from clients import Incoming, chunks
from mcp_sessions import MCPSessionMiddleware
from mcp_sessions.jsonrpc import Message, parse
from mcp_sessions.telemetry.instrumented import makes_server_spans
from mcp_sessions.telemetry.request_spans import About, RequestSpans
from recorded import process_wide

from .errands import ALL_CELLS, bare
from .servers import KEYS, Cell, Hall, running

CALLER = (0xCA, 0xC1)
START = f"00-{0x5E:032x}-{0x51:016x}-01"
SPANS_OF_ITS_OWN = {"sdk2", "fastmcp3", "fastmcp4"}
ELSEWHERE = {
    ("sdk1", True),  # the task of a transport session keeps the trace context of the request that opened it
    ("fastapi", False),  # newer ones start an HTTP span within ours, and take its parent from the HTTP headers alone
}
"""Where the tool's span need not hang below the message's."""
CELLS = [cell for cell in ALL_CELLS if cell.json]


class Spanned:
    """Puts a request span around each message of an application."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.requests = RequestSpans()
        self.requests.is_native = makes_server_spans(app, "/mcp")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        body = await read(receive)
        message = parse(body)
        assert isinstance(message, Message)
        session = scope["mcp_session"]
        about = None if session is None else About(session.ref, START)
        handling = self.requests.begin(message, version="2025-11-25", about=about)
        try:
            await self.app(scope, Incoming(*chunks(body)), send)
        finally:
            if handling is not None:
                handling.end()


def spanned(cell: Cell, hall: Hall, guard: None = None) -> ASGIApp:
    app: Any = bare(cell, hall)
    return MCPSessionMiddleware(Spanned(app), keys=KEYS, transport="off")


@pytest.fixture
def spans() -> Iterator[list[ReadableSpan]]:
    """The spans of one test, of all that is in this process."""
    with process_wide().recording() as kept:
        yield kept


@pytest.mark.parametrize("cell", CELLS, ids=str)
async def test_there_is_one_server_span_per_call(cell: Cell, spans: list[ReadableSpan]) -> None:
    """It is the framework's where the framework makes one, its parent is the caller's span, it names the session."""
    async with running(cell, make=spanned) as server:
        client = await server.connected()
        held = await client.create()
        server.hall.open()
        meta = {"traceparent": f"00-{CALLER[0]:032x}-{CALLER[1]:016x}-01"}
        params = {"name": "errand", "arguments": {"name": "one"}, "_meta": meta}
        said = (await client.request("tools/call", params, held)).text
    (span,) = [span for span in spans if span.kind is SpanKind.SERVER and "errand" in span.name]
    (work,) = [span for span in spans if span.name == "errand"]
    assert span.instrumentation_scope is not None
    assert (span.instrumentation_scope.name != "mcp_sessions") == (cell.framework in SPANS_OF_ITS_OWN)
    assert span.name == "tools/call errand"
    assert span.parent is not None
    assert (span.parent.trace_id, span.parent.span_id) == CALLER
    assert (span.attributes or {})["session.id"] == said
    assert work.parent == span.context or (cell.framework, cell.stateful) in ELSEWHERE
