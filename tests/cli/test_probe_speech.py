"""A client of one era: what a server says of itself, and how it is spoken to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from faulty import Faulty, Reply, json_reply, listening

from mcp_sessions.cli import probe_client
from mcp_sessions.cli.probe_client import Wire


class Server:
    """Answers every request with one result, and keeps what came."""

    def __init__(self, result: dict[str, Any], **headers: str) -> None:
        self.result = result
        self.more = {name.replace("_", "-"): value for name, value in headers.items()}
        self.seen: list[tuple[str, Mapping[str, str], Any]] = []

    def __call__(self, verb: str, headers: Mapping[str, str], body: bytes) -> Reply:
        message = json.loads(body or b"{}")
        self.seen.append((verb, headers, message))
        status, kind, text = json_reply({"jsonrpc": "2.0", "id": message.get("id"), "result": self.result})
        return status, {**kind, **self.more}, text


@pytest.mark.parametrize("result", [{}, {"capabilities": []}])
def test_who_has_no_capabilities_does_not_speak_the_era(result: dict[str, Any]) -> None:
    """Whatever it says instead."""
    with listening(Server(result)) as url:
        assert probe_client.modern(Wire(url)) is probe_client.legacy(Wire(url)) is None


def test_the_legacy_era_begins_with_a_handshake() -> None:
    """The version is the server's; its transport session is carried from then on."""
    server = Server({"capabilities": {"prompts": {}}, "protocolVersion": "2025-03-26"}, mcp_session_id="own")
    with listening(server) as url:
        spoken = probe_client.legacy(Wire(url))
        assert spoken is not None
        assert (spoken.era, spoken.version, spoken.shown, spoken.harmless, spoken.settings) == (
            "legacy",
            "2025-03-26",
            "2025-03-26",
            "prompts/list",
            None,
        )
        spoken.ask("ping")
    assert [message.get("method") for _, _, message in server.seen] == [
        "initialize",
        "notifications/initialized",
        "ping",
    ]
    assert [headers.get("mcp-session-id") for _, headers, _ in server.seen] == [None, "own", "own"]
    assert not spoken.names_transport


@pytest.mark.parametrize(
    "named",
    ["2025\x1b[2J", "2025\u2713", "2025-11-2\u0665", "2025-11-25\n", "1999-01-01", 20251125, None, ["2025-11-25"]],
)
def test_a_version_that_is_none_is_neither_repeated_nor_shown(named: object) -> None:
    """What is asked for is spoken then; terminals and headers see nothing of it."""
    server = Server({"capabilities": {}, "protocolVersion": named})
    with listening(server) as url:
        spoken = probe_client.legacy(Wire(url))
    assert spoken is not None
    assert (spoken.version, spoken.shown) == ("2025-11-25", "(unusual)")
    assert {headers["mcp-protocol-version"] for _, headers, _ in server.seen} == {"2025-11-25"}


def test_a_transport_session_for_who_knows_none_is_noticed_and_ended() -> None:
    """It is named to clients alone that do not say that they know sessions."""

    class Naming(Server):
        def __call__(self, verb: str, headers: Mapping[str, str], body: bytes) -> Reply:
            knows = b"experimental" in body
            self.more = {} if knows else {"mcp-session-id": "named"}
            return super().__call__(verb, headers, body)

    server = Naming({"capabilities": {}})
    with listening(server) as url:
        spoken = probe_client.legacy(Wire(url))
    assert spoken is not None
    assert (spoken.names_transport, spoken.transport, spoken.harmless) == (True, None, "ping")
    assert [(verb, headers.get("mcp-session-id")) for verb, headers, _ in server.seen][2] == ("DELETE", "named")


def test_the_modern_era_has_an_envelope() -> None:
    """In `_meta` and in the headers; a harmless question is there in any case."""
    server = Server({"capabilities": {"experimental": {"sessions": {"required": "some"}}}})
    with listening(server) as url:
        spoken = probe_client.modern(Wire(url))
        assert spoken is not None
        assert (spoken.era, spoken.harmless, spoken.settings) == ("modern", "server/discover", {"required": "some"})
        spoken.ask("tools/list", session={"sessionId": "a"}, envelope=False, headers={"Mcp-Method": "other"})
    (_, first, discovered), (_, second, listed) = server.seen
    assert (first["mcp-method"], second["mcp-method"]) == ("server/discover", "other")
    assert len(discovered["params"]["_meta"]) == 2
    assert set(listed["params"]["_meta"]) == {
        "io.modelcontextprotocol/protocolVersion",
        "io.modelcontextprotocol/session",
    }


def test_experimental_capabilities_may_be_anything() -> None:
    """They are a stranger's."""
    sayings: list[Any] = [None, [], {"sessions": None}, {"sessions": []}]
    for said in sayings:
        assert probe_client.Speech(Wire("http://h.example"), True, "v", {"experimental": said}).settings is None


def test_the_faulty_server_speaks_both() -> None:
    """On which the rules are tried."""
    with listening(Faulty()) as url:
        assert probe_client.modern(Wire(url)) is not None
        assert probe_client.legacy(Wire(url)) is not None
