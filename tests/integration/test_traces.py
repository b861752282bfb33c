"""What the frameworks' own spans hold: never a session id of ours, though FastMCP copies `Mcp-Session-Id` into them.

The spans are real ones, of the frameworks' own instrumentation, kept in memory by the OpenTelemetry SDK.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from environments import require

require("opentelemetry-sdk>=1.28")

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from .servers import CELLS, Cell, running
from .wire import SESSION_KEY, Client, Held


@pytest.fixture(scope="module")
def exporter() -> Iterator[InMemorySpanExporter]:
    """Every span of this process, from here to the end of the file."""
    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    trace.set_tracer_provider(provider)
    yield kept
    provider.shutdown()


def written(exporter: InMemorySpanExporter) -> str:
    """All that the spans so far say, as one text; they are forgotten then."""
    text = "\n".join(span.to_json() for span in exporter.get_finished_spans())
    exporter.clear()
    return text


async def everything(client: Client, held: Held) -> None:
    """A session's whole life, with and without a mirror of its id, and with a bad one."""
    mirror = {"mcp-session-id": held.id}
    await client.request("tools/call", {"name": "count", "arguments": {}}, held)
    await client.request("tools/list", {}, held)
    forged = Held({"sessionId": held.id[:-8] + "AAAAAAAA"})
    await client.request("tools/call", {"name": "whoami", "arguments": {}}, forged)
    if "mcp-session-id" not in client.headers:
        await client.request("tools/call", {"name": "whoami", "arguments": {}}, held, mirror)
        await client.request("tools/call", {"name": "whoami", "arguments": {}}, None, mirror)
    await client.delete(held)


@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell.json], ids=str)
async def test_no_span_holds_a_session_id(cell: Cell, exporter: InMemorySpanExporter) -> None:
    """Nor its signature, nor a state, nor the metadata's key, in any attribute, event or name."""
    async with running(cell) as server:
        client = await server.connected()
        held = await client.create()
        first = held.id
        await everything(client, held)
    spans = written(exporter)
    assert "tools/call" in spans
    assert first not in spans
    assert first.rsplit(".", 1)[1] not in spans
    assert held.metadata["state"].rsplit(".", 1)[1] not in spans
    assert SESSION_KEY not in spans


def test_the_search_sees_what_a_span_holds(exporter: InMemorySpanExporter) -> None:
    """Were an id in one, it would be found."""
    with trace.get_tracer("test").start_as_current_span("a", attributes={"mcp.session.id": "e30.e30.secret"}):
        pass
    assert "e30.e30.secret" in written(exporter)
