"""One server span per message, ours or the framework's, with the caller's span as its parent.

Tested on every framework in every mode, with a trace context in the message and without one.
"""

from __future__ import annotations

from typing import Any, Final

import pytest
from apps import grouped
from environments import require

require("opentelemetry-sdk>=1.28")

from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext, SpanKind
from starlette.types import ASGIApp

from mcp_sessions import MCPSessionMiddleware
from mcp_sessions._protocol.jsonrpc import CLIENT_INFO_KEY

from .errands import ALL_CELLS, bare
from .servers import KEYS, Cell, Hall, Running, running
from .wire import Held

CALLER = (0xCA, 0xC1)
META = {"traceparent": f"00-{CALLER[0]:032x}-{CALLER[1]:016x}-01"}
TRACEPARENTS: Final = {"own-trace": False, "traceparent": True}
OURS = "mcp_sessions"
CLIENT = {CLIENT_INFO_KEY: {"name": "kitchen", "version": "2"}}
SPANS_OF_ITS_OWN = {"sdk2", "fastmcp3", "fastmcp4"}
ELSEWHERE = {
    ("fastapi", False)  # newer versions start an HTTP span within ours, with the HTTP headers' parent
}
"""Frameworks on which the message's span need not be the parent of the tool's span."""
JSON_CELLS: Final = [cell for cell in ALL_CELLS if cell.json]


def ours(cell: Cell, hall: Hall, **options: Any) -> ASGIApp:
    return MCPSessionMiddleware(bare(cell, hall), **grouped(**{"keys": KEYS, "transport": "off", **options}))


pytestmark = pytest.mark.usefixtures("redis")


async def errand(server: Running, held: Held | None, name: str, meta: dict[str, Any]) -> str:
    client = await server.connected()
    params = {"name": "errand", "arguments": {"name": name}, "_meta": meta}
    return (await client.request("tools/call", params, held)).text


def maker(span: ReadableSpan) -> str:
    assert span.instrumentation_scope is not None
    return span.instrumentation_scope.name


def where(context: SpanContext | None) -> tuple[int, int] | None:
    return None if context is None else (context.trace_id, context.span_id)


def links(span: ReadableSpan) -> set[tuple[int, int] | None]:
    return {where(link.context) for link in span.links}


def named(span: ReadableSpan) -> Any:
    return (span.attributes or {}).get("session.id")


@pytest.mark.parametrize("traceparent", TRACEPARENTS.values(), ids=TRACEPARENTS)
@pytest.mark.parametrize("cell", ALL_CELLS, ids=str)
async def test_there_is_one_server_span_per_call(cell: Cell, traceparent: bool, spans: list[ReadableSpan]) -> None:
    """The framework's where it makes one: below the caller's, above the tool's, with a link to the session's start."""
    async with running(cell, make=ours) as server:
        client = await server.connected()
        held = Held((await client.request("sessions/create", {"_meta": CLIENT})).result["session"])
        server.hall.open()
        session = await errand(server, held, "one", META if traceparent else {})
    (start,) = [span for span in spans if span.name == "session start"]
    (work,) = [span for span in spans if span.name == "errand"]
    (span,) = [span for span in spans if span.kind is SpanKind.SERVER and span.name == "tools/call errand"]
    assert (maker(span) != OURS) == (cell.framework in SPANS_OF_ITS_OWN)
    assert where(span.parent) == (CALLER if traceparent else None)
    assert where(start.context) in links(span)
    assert named(span) == named(work) == named(start) == session
    assert (span.attributes or {})["mcp_sessions.client"] == "kitchen 2"
    assert work.parent == span.context or (cell.framework, cell.stateful) in ELSEWHERE


def instrumented_outside(cell: Cell, hall: Hall, **options: Any) -> ASGIApp:
    return OpenTelemetryMiddleware(ours(cell, hall, **options), exclude_spans=["send", "receive"])


def instrumented_inside(cell: Cell, hall: Hall, **options: Any) -> ASGIApp:
    inner = OpenTelemetryMiddleware(bare(cell, hall), exclude_spans=["send", "receive"])
    return MCPSessionMiddleware(inner, **grouped(keys=KEYS, transport="off", **options))


PLACES: Final = {"alone": ours, "outside": instrumented_outside, "inside": instrumented_inside}


@pytest.mark.parametrize("traceparent", TRACEPARENTS.values(), ids=TRACEPARENTS)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("cell", JSON_CELLS, ids=str)
async def test_a_session_can_be_one_trace(cell: Cell, place: str, traceparent: bool, spans: list[ReadableSpan]) -> None:
    """All that names the session is in one trace, with one server span a call, whatever trace the caller brings.

    The span of an HTTP instrumentation outside starts before the session is known, so it stays in its caller's trace.
    """
    async with running(cell, make=PLACES[place], trace="session") as server:
        client = await server.connected()
        held = await client.create()
        server.hall.open()
        session = await errand(server, held, "one", META if traceparent else {})
        await client.delete(held)
    around = [span for span in spans if place == "outside" and maker(span) == "opentelemetry.instrumentation.asgi"]
    within = [span for span in spans if named(span) == session and span not in around]
    (trace,) = {span.context.trace_id for span in within if span.context is not None}
    (root,) = [span for span in spans if span.parent is None and (where(span.context) or (0,))[0] == trace]
    assert root.name == "sessions/create"
    assert {"session start", "errand", "session end", "sessions/delete"} <= {span.name for span in within}
    (call,) = [span for span in within if span.kind is SpanKind.SERVER and is_message(span, "tools/call")]
    assert (maker(call) != OURS) == (cell.framework in SPANS_OF_ITS_OWN)
    assert where(call.parent) in {where(span.context) for span in within}
    assert (CALLER in links(call)) == traceparent
    assert {where(span.context) for span in around if is_message(span, "tools/call")} <= links(call)


def is_message(span: ReadableSpan, method: str) -> bool:
    return (span.attributes or {}).get("mcp.method.name") == method
