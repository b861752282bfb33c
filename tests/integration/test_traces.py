"""The frameworks' own spans never hold a session id of ours, though FastMCP copies `Mcp-Session-Id` into them."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace import ReadableSpan

from .servers import CELLS, Cell, running
from .wire import SESSION_KEY, Client, Held

TRACED = [cell for cell in CELLS if cell.json and cell.framework != "sdk1"]
"""SDK 1.x makes no spans."""


def written(spans: list[ReadableSpan]) -> str:
    return "\n".join(span.to_json() for span in spans)


async def everything(client: Client, held: Held) -> None:
    """Live a session's whole life, with and without a mirror of its id, and with a forged one."""
    mirror = {"mcp-session-id": held.id}
    await client.request("tools/call", {"name": "count", "arguments": {}}, held)
    await client.request("tools/list", {}, held)
    forged = Held({"sessionId": held.id[:-8] + "AAAAAAAA"})
    await client.request("tools/call", {"name": "whoami", "arguments": {}}, forged)
    if "mcp-session-id" not in client.headers:
        await client.request("tools/call", {"name": "whoami", "arguments": {}}, held, mirror)
        await client.request("tools/call", {"name": "whoami", "arguments": {}}, None, mirror)
    await client.delete(held)


@pytest.mark.parametrize("cell", TRACED, ids=str)
async def test_no_span_holds_a_session_id(cell: Cell, spans: list[ReadableSpan]) -> None:
    async with running(cell) as server:
        client = await server.connected()
        held = await client.create()
        first = held.id
        await everything(client, held)
    text = written(spans)
    assert "tools/call" in text
    assert first not in text
    assert first.rsplit(".", 1)[1] not in text
    assert held.metadata["state"].rsplit(".", 1)[1] not in text
    assert SESSION_KEY not in text
