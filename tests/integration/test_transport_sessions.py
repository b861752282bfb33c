"""Logical sessions beside the transport sessions that stateful servers of the legacy era hand out."""

from __future__ import annotations

import pytest

from .servers import STATEFUL, Cell, running

stateful = pytest.mark.parametrize("cell", STATEFUL, ids=str)


@stateful
async def test_the_servers_transport_session_is_untouched(cell: Cell) -> None:
    """The transport session keeps the server's id, with and without a logical session, and ends by DELETE."""
    async with running(cell) as server:
        client = server.client()
        transport_id = (await client.connect()).headers["mcp-session-id"]
        assert "." not in transport_id
        held = await client.create()
        whoami = {"name": "whoami", "arguments": {}}
        for session in (held, None):
            reply = await client.request("tools/call", whoami, session)
            assert reply.headers.get("mcp-session-id", transport_id) == transport_id
        assert (await client.send("DELETE")).status == 200
        assert (await client.request("tools/call", whoami)).status == 404


@stateful
async def test_a_logical_session_outlives_the_transport_session(cell: Cell) -> None:
    async with running(cell) as server:
        client = await server.connected()
        held = await client.create()
        await client.call("count", held)
        await client.send("DELETE")
        assert await (await server.connected()).call("count", held) == "2"


@pytest.mark.parametrize("transport_id", [None, "0123456789abcdef0123456789abcdef"])
@stateful
async def test_a_request_that_the_server_refuses_creates_no_session(cell: Cell, transport_id: str | None) -> None:
    """Without a transport session, or with a dead one, `sessions/create` gets the server's own refusal."""
    facts: list[object] = []
    headers = {} if transport_id is None else {"mcp-session-id": transport_id}
    async with running(cell, listen=facts.append) as server:
        client = server.client(**headers)
        own = await client.request("ping")
        refused = await client.request("sessions/create")
    assert refused.status == own.status == (400 if transport_id is None else 404)
    assert refused.error["message"] == own.error["message"]
    assert facts == []
