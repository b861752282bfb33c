"""What a client calls itself is read where its era says it, kept in its sessions, and never a reason to refuse it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from apps import Server, sessions
from clients import LEGACY, Client

from mcp_sessions import Session
from mcp_sessions._protocol.jsonrpc import CLIENT_INFO_KEY, Message, parse
from mcp_sessions._protocol.labels import client_of

WIRE = {"name": "wire", "version": "1.2"}
TEXTS: list[tuple[Any, str | None]] = [
    (WIRE, "wire 1.2"),
    ({"name": "w" * 1000}, "w" * 64),
    ({"name": "wire", "title": "Wire"}, "wire"),
    ({"name": "", "version": ""}, None),
    ({"name": "two\nlines"}, None),
    ({"name": "eyJhbGciOiJIUzI1NiIsImtpZCI6ImEiLCJ0eXAiOiJtY3Atc2Vzc2lvbitqd3QifQ.e30.c2ln"}, None),
    ({"name": 7}, None),
    ({"version": "1"}, None),
    ("wire", None),
    (None, None),
]


def message(method: str, params: dict[str, Any]) -> Message:
    parsed = parse(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode())
    assert isinstance(parsed, Message)
    return parsed


@pytest.mark.parametrize(("info", "text"), TEXTS)
def test_it_is_one_line_of_text_or_nothing(info: Any, text: str | None) -> None:
    """From the params of the legacy era's handshake, and from the modern era's envelope; a session id is not a name."""
    assert client_of(message("initialize", {"clientInfo": info})) == text
    assert client_of(message("sessions/create", {"_meta": {CLIENT_INFO_KEY: info}})) == text


def test_a_message_that_says_nothing_of_its_sender_has_none() -> None:
    assert client_of(message("sessions/create", {"_meta": {}})) is None
    assert client_of(message("sessions/create", {})) is None
    assert client_of(message("initialize", {})) is None


async def caller(session: Session | None, arguments: dict[str, Any]) -> Any:
    assert session is not None
    return session.client


@pytest.mark.parametrize(("name", "kept"), [("wire", "wire 1.2"), ("w" * 100, "w" * 64)])
async def test_a_session_knows_its_client_in_every_request(name: str, kept: str) -> None:
    client = Client(sessions(Server(caller=caller)))
    envelope = {"_meta": {CLIENT_INFO_KEY: {**WIRE, "name": name}}}
    held = (await client.send("sessions/create", envelope)).result["session"]
    assert (await client.tool("caller", session={"sessionId": held["sessionId"]})).result["content"] == kept
    assert (await client.tool("caller", session=await client.create())).result["content"] is None


async def test_a_transport_session_knows_it_from_the_handshake_and_tells_what_is_created_by_it() -> None:
    """An unchanged client says its name once; a fork of a session is its client's, too."""
    client = Client(sessions(Server(caller=caller)), modern=False)
    params = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": WIRE}
    shaken = await client.send("initialize", params)
    header = (b"mcp-session-id", shaken.headers[b"mcp-session-id"])
    assert (await client.tool("caller", header)).result["content"] == "wire 1.2"
    created = (await client.send("sessions/create", None, header)).result["session"]
    held = {"sessionId": created["sessionId"]}
    assert (await client.tool("caller", session=held)).result["content"] == "wire 1.2"
    fork = (await client.send("sessions/fork", session=held)).result["session"]
    assert (await client.tool("caller", session={"sessionId": fork["sessionId"]})).result["content"] == "wire 1.2"
