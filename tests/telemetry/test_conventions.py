"""OpenTelemetry's conventions for MCP servers, attribute by attribute, on our spans and on those of each framework.

Source: `CONVENTIONS`, "mcp.server"; its requirement levels are those of the table. Left out: `client.port`, which names
no client behind a proxy. The status of a client's mistake stays unset, and it has no `error.type`.
"""

from __future__ import annotations

from typing import Any

import pytest
from apps import sessions
from clients import RealClient, credentials, lifespan
from environments import needs, require
from recorded import ALIAS, process_wide

require("opentelemetry-sdk>=1.28")

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode

from integration.servers import CELLS, FRAMEWORKS, Cell, bare, http_app, server_class

CLIENT = {"io.modelcontextprotocol/clientInfo": {"name": "wire", "version": "1"}}
JSON = [cell for cell in CELLS if cell.json and not cell.stateful]
COMMON = {
    "mcp.method.name": ...,  # required
    "jsonrpc.request.id": ...,  # of a request
    "mcp.protocol.version": "2025-11-25",  # recommended, and so are the next four
    "mcp.session.id": ...,  # in a session
    "network.protocol.name": "http",
    "network.protocol.version": "1.1",
    "network.transport": "tcp",
    "client.address": "127.0.0.1",  # where the application asks for it
}
UNKNOWN = "-32602" if FRAMEWORKS[0] == "sdk1" else "-32601"  # what it calls a method that it does not know
TOOL = {"gen_ai.tool.name": "whoami", "gen_ai.operation.name": "execute_tool"}
# By the method: its params, the span's name, and what the span has beyond what all have. `jsonrpc.protocol.version` is
# for versions that are not 2.0, of which there are none here.
ROWS: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "tools/call": ({"name": "whoami", "arguments": {}}, "tools/call whoami", TOOL),
    "prompts/get": ({"name": "who"}, "prompts/get who", {"gen_ai.prompt.name": "who"}),
    "resources/read": ({"uri": "session://me"}, "resources/read", {"mcp.resource.uri": "session://me"}),
    "tools/list": ({}, "tools/list", {}),
    "no/such": ({}, "_OTHER", {"rpc.response.status_code": UNKNOWN}),
}
ODD = {("f", "no/such")}  # FastMCP calls that error by its class
NEVER = {"gen_ai.tool.call.arguments", "gen_ai.tool.call.result"}  # opt-in
ONLY = {"gen_ai.tool.name", "gen_ai.operation.name", "gen_ai.prompt.name", "mcp.resource.uri", "error.type"}


def check(spans: list[ReadableSpan], cell: Cell, method: str) -> None:
    _, name, own = ROWS[method]
    servers = [span for span in spans if span.kind is SpanKind.SERVER]
    servers = [span for span in servers if (span.attributes or {})["mcp.method.name"] == method]  # FastMCP 3 also lists
    found = [span for span in servers if maker(span).name == "mcp_sessions"] or servers
    assert len(found) == 1
    attributes: dict[str, Any] = dict(found[0].attributes or {})
    version = {"mcp.protocol.version": "2026-07-28" if cell.modern else "2025-11-25"}
    expected = {**COMMON, **version, "mcp.method.name": method, **own}
    assert found[0].name == name
    assert {key: attributes.get(key) for key, value in expected.items() if value is not ...} == {
        key: value for key, value in expected.items() if value is not ...
    }
    assert attributes["jsonrpc.request.id"].isdigit()
    assert attributes["mcp.session.id"].startswith("ses_")
    fails = method == "no/such" and maker(found[0]).name != "mcp_sessions"  # SDK 2.x takes it for its own error
    assert not attributes.keys() & (NEVER | (ONLY - {*expected, *(["error.type"] if fails else [])}))
    assert found[0].status.status_code is (StatusCode.ERROR if fails else StatusCode.UNSET)


def whole(what: str, tool: str, value: Any) -> Any:
    return value


def maker(span: ReadableSpan) -> Any:
    return span.instrumentation_scope


@pytest.mark.parametrize("cell", JSON, ids=str)
async def test_a_framework_s_span_has_what_the_conventions_ask_for(cell: Cell) -> None:
    """What it leaves out is added, whichever of the two makes it."""
    who = {"principal": lambda scope: "ann", "user": lambda principal: principal.subject}
    app = sessions(bare(cell), transport="off", **who)
    async with lifespan(app):
        client = RealClient(app, modern=cell.modern)
        held = credentials((await client.send("sessions/create", {"_meta": CLIENT})).result["session"])
        for method, (params, *_) in ROWS.items():
            if (cell.framework[0], method) not in ODD:
                with process_wide().recording() as spans:
                    await client.send(method, params, session=held)
                check(spans, cell, method)


# --- what it costs -------------------------------------------------------------------------------------

MAX_SPANS, MAX_BYTES = 2, 1100
FURTHER = {ALIAS, "input.value", "output.value", *NEVER}  # what the application asks for beyond its session


def size(spans: list[ReadableSpan]) -> int:
    """The bytes of exported spans, without the contents of the call."""
    parts = [scoped for part in encode_spans(spans).resource_spans for scoped in part.scope_spans]
    sent = [span for scoped in parts for span in scoped.spans]
    further = [one.ByteSize() + 2 for span in sent for one in span.attributes if one.key in FURTHER]
    return int(sum(span.ByteSize() for span in sent) - sum(further))


@needs("mcp>=2")
@pytest.mark.parametrize("options", [{}, {"redact": whole}], ids=["plain", "contents"])
@pytest.mark.parametrize("is_instrumented", [False, True])
async def test_a_call_takes_few_spans_and_bytes(is_instrumented: bool, options: dict[str, Any]) -> None:
    """As they are exported, also with an HTTP instrumentation and with what the call says."""
    cell = next(cell for cell in reversed(JSON) if cell.framework.startswith("sdk"))
    mcp = server_class(cell.framework)("shop")
    mcp.tool(name="buy")(lambda article: article)
    app = sessions(http_app(mcp, cell), transport="off", **options)
    around: Any = OpenTelemetryMiddleware(app, exclude_spans=["send", "receive"]) if is_instrumented else app
    async with lifespan(app):
        client = RealClient(around, modern=cell.modern)
        held = await client.create()
        with process_wide().recording() as spans:
            await client.send("tools/call", {"name": "buy", "arguments": {"article": "hat"}}, session=held)
    assert len(spans) <= MAX_SPANS
    assert size(spans) <= MAX_BYTES
