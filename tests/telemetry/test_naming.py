"""A message is named by the conventions, and by nothing that a client could hide a credential in."""

from __future__ import annotations

import json
from typing import Any

import pytest
from apps import Server, sessions
from clients import Client

from mcp_sessions._protocol.jsonrpc import Message, parse
from mcp_sessions.telemetry._attributes import message_attributes, target_of, versions_of

HTTP = {"network.transport": "tcp", "network.protocol.name": "http"}


def message(method: str, id: Any = 1, **params: Any) -> Message:
    envelope = {"jsonrpc": "2.0", "method": method, "params": params}
    return parse(json.dumps(envelope if id is None else {**envelope, "id": id}).encode())


def describe(sent: Message, version: str | None = None) -> dict[str, str]:
    return {**message_attributes(sent, target_of(sent), None), **versions_of(version, None)}


def beyond_http(sent: Message, version: str | None = None) -> dict[str, str]:
    return {name: value for name, value in describe(sent, version).items() if name not in HTTP}


def test_a_tool_call_is_named_by_its_tool() -> None:
    assert beyond_http(message("tools/call", 7, name="add"), "2026-07-28") == {
        "mcp.method.name": "tools/call",
        "mcp.protocol.version": "2026-07-28",
        "jsonrpc.request.id": "7",
        "gen_ai.tool.name": "add",
        "gen_ai.operation.name": "execute_tool",
    }


def test_a_prompt_and_a_resource_are_named() -> None:
    """A resource by its URI, which is an attribute and no part of a span's name."""
    prompt = message("prompts/get", "a-1", name="greet")
    assert beyond_http(prompt) == {
        "mcp.method.name": "prompts/get",
        "jsonrpc.request.id": "a-1",
        "gen_ai.prompt.name": "greet",
    }
    resource = message("resources/read", uri="file:///report.pdf")
    assert target_of(resource) is None
    assert beyond_http(resource)["mcp.resource.uri"] == "file:///report.pdf"


def test_a_notification_has_no_id_and_a_list_no_target() -> None:
    assert beyond_http(message("notifications/initialized", None)) == {"mcp.method.name": "notifications/initialized"}
    assert beyond_http(message("tools/list", name="x")) == {"mcp.method.name": "tools/list", "jsonrpc.request.id": "1"}
    assert target_of(message("tools/call")) is None


def test_every_message_names_its_transport() -> None:
    """Streamable HTTP is HTTP over TCP."""
    assert describe(message("ping")).items() >= HTTP.items()


@pytest.mark.parametrize("uri", ["postgres://user:pw@db/cart?sslkey=x#y", "postgres://db/cart"])
def test_a_uri_loses_what_often_holds_credentials(uri: str) -> None:
    assert beyond_http(message("resources/read", uri=uri))["mcp.resource.uri"] == "postgres://db/cart"
    assert "mcp.resource.uri" not in beyond_http(message("resources/read", uri="?sslkey=x"))  # nothing is left of it


async def test_a_session_id_in_the_wrong_place_is_left_out() -> None:
    token = (await Client(sessions(Server())).create())["sessionId"]
    sent = [
        message("tools/call", name=token),
        message("resources/read", uri=f"x://{token}"),
        message("ping", token),
        message(token),
    ]
    texts = [f"{target_of(one)} {describe(one, token)}" for one in sent]
    assert not any(token.rsplit(".", 1)[1][:16] in text for text in texts)


@pytest.mark.parametrize("name", ["a\nb", 7, "x" * 200])
def test_a_strange_name_is_left_out_or_cut(name: Any) -> None:
    """A line break, something that is no text, and more than the protocol allows."""
    target = target_of(message("tools/call", name=name))
    assert target is None or target == "x" * 128


@pytest.mark.parametrize("id", ["x" * 65, "a\nb", 10**64])
def test_a_strange_id_is_left_out(id: Any) -> None:
    assert "jsonrpc.request.id" not in beyond_http(message("ping", id))


def test_a_name_that_cannot_be_written_down_is_left_out() -> None:
    parsed = parse(b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"\\ud800"}}')
    assert target_of(parsed) is None


@pytest.mark.parametrize("version", [None, "1999-01-01", "2026-07-28, x", "draft"])
def test_a_strange_version_is_left_out(version: str | None) -> None:
    assert "mcp.protocol.version" not in beyond_http(message("ping"), version)
