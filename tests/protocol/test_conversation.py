"""`correlate=`: what a client calls its conversation is a label."""

from __future__ import annotations

from typing import Any

import pytest
from apps import Server, sessions
from clients import Client

from mcp_sessions import ConfigurationError, Correlation, Session

CHAT = {"openai/session": "c1"}
FOUND = Correlation("c1", "meta:openai/session")


async def correlation(session: Session | None, arguments: dict[str, Any]) -> Any:
    assert session is not None
    return None if session.correlation is None else [session.correlation.id, session.correlation.source]


@pytest.fixture
def server() -> Server:
    return Server(correlation=correlation)


def calling(tool: str, meta: dict[str, Any]) -> dict[str, Any]:
    return {"name": tool, "arguments": {}, "_meta": meta}


async def test_with_a_session_it_stands_on_the_session(server: Server) -> None:
    """With where it was found; and the session is the one that `_meta` names, whatever the label says."""
    client = Client(sessions(server, correlate=True))
    session = await client.create()
    answer = (await client.send("tools/call", calling("correlation", CHAT), session=session)).result["content"]
    assert answer == ["c1", "meta:openai/session"]
    assert "mcp_correlation" not in server.last.scope
    assert (await client.tool("correlation", session=session)).result["content"] is None


async def test_without_a_session_it_stands_on_the_scope(server: Server) -> None:
    client = Client(sessions(server, correlate=["header:x-chat"]))
    assert (await client.tool("whoami", (b"x-chat", b"c2"))).result["content"] == "nobody"
    assert server.last.scope["mcp_correlation"] == Correlation("c2", "header:x-chat")
    assert server.last.scope["mcp_session"] is None
    await client.tool("whoami")
    assert server.last.scope["mcp_correlation"] is None


async def test_by_default_nobody_looks_for_it(server: Server) -> None:
    client = Client(sessions(server))
    await client.send("tools/call", calling("whoami", CHAT))
    assert "mcp_correlation" not in server.last.scope
    session = await client.create()
    answer = await client.send("tools/call", calling("correlation", CHAT), session=session)
    assert answer.result["content"] is None


async def test_it_satisfies_no_policy(server: Server) -> None:
    client = Client(sessions(server, correlate=True, require="always"))
    refused = await client.send("tools/call", calling("whoami", CHAT))
    assert refused.error == {"code": -31044, "message": "Session required"}
    assert "tools/call" not in server.methods


async def test_it_selects_no_data(server: Server) -> None:
    client = Client(sessions(server, correlate=True))
    one, other = await client.create(), await client.create()
    remember = {"name": "remember", "_meta": CHAT}
    await client.send("tools/call", {**remember, "arguments": {"a": 1}}, session=one)
    answer = await client.send("tools/call", {**remember, "arguments": {"b": 2}}, session=other)
    assert answer.result["content"] == {"b": 2}


async def test_a_message_without_a_session_is_forwarded_byte_for_byte(server: Server) -> None:
    """Looking changes nothing; and an answer that a client posts names no conversation."""
    client = Client(sessions(server, correlate=True))
    body = b' {"jsonrpc":"2.0", "id":1,"method":"ping","params":{"_meta":{"openai/session":"c1"}}}'
    await client.post(body)
    assert (server.last.body, server.last.scope["mcp_correlation"]) == (body, FOUND)
    await client.post({"jsonrpc": "2.0", "id": 1, "result": {}})
    assert "mcp_correlation" not in server.last.scope


@pytest.mark.parametrize("options", [{"correlate": "meta:chat"}, {"correlate": [7]}])
def test_a_wrong_option_fails_at_construction(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        sessions(Server(), **options)
