"""The whole of a probe: what is said of a server, and what becomes of one that stops answering."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from faulty import OFFERS, Faulty, Reply, json_reply, listening

from mcp_sessions.cli.probe import probe
from mcp_sessions.cli.probe_client import MAX_BYTES, Wire
from mcp_sessions.errors import ConfigurationError


def test_it_says_what_a_server_speaks() -> None:
    """Versions, dialects, and what is offered; of settings those alone that are known."""
    with listening(Faulty(offers={**OFFERS, "x\x1b": "anything"})) as url:
        report = probe(Wire(url))
    assert [(era.era, era.version, era.dialects, era.offers) for era in report.eras] == [
        ("legacy", "2025-11-25", ["draft"], OFFERS),
        ("modern", "2026-07-28", ["draft"], OFFERS),
    ]


@pytest.mark.parametrize(
    ("capabilities", "header", "dialects"),
    [
        ({"sessions": {"required": True}}, None, ["draft", "SEP-1364"]),
        ({}, "own", ["transport sessions of its own"]),
        ({}, None, []),
    ],
)
def test_it_knows_other_ways_of_speaking(capabilities: Any, header: str | None, dialects: list[str]) -> None:
    """By what stands in the capabilities and the headers."""

    def answer(verb: str, headers: Mapping[str, str], body: bytes) -> Reply:
        message = json.loads(body or b"{}")
        if message.get("method") != "initialize":
            return 404, {}, b""
        status, kind, text = json_reply({"id": message["id"], "result": {"capabilities": capabilities}})
        return status, {**kind, **({"mcp-session-id": header} if header else {})}, text

    with listening(answer) as url:
        (era,) = probe(Wire(url)).eras
    assert era.dialects == dialects


def test_a_version_that_is_none_is_not_shown() -> None:
    """Else it would reach the terminal as the server wrote it."""

    def answer(verb: str, headers: Mapping[str, str], body: bytes) -> Reply:
        result = {"capabilities": {}, "protocolVersion": "2025\u2713\x1b[2J"}
        message = json.loads(body or b"{}")
        return json_reply({"id": message["id"], "result": result}) if "id" in message else (202, {}, b"")

    with listening(answer) as url:
        report = probe(Wire(url))
    assert report.eras[0].version == "(unusual)"
    assert "\x1b" not in report.as_text()


def test_what_names_a_transport_session_to_others_is_the_header() -> None:
    """As this package's middleware does."""

    def answer(verb: str, headers: Mapping[str, str], body: bytes) -> Reply:
        message = json.loads(body or b"{}")
        if message.get("method") != "initialize":
            return 404, {}, b""
        named = {} if b"experimental" in body else {"mcp-session-id": "named"}
        status, kind, text = json_reply({"id": message["id"], "result": {"capabilities": {}}})
        return status, {**kind, **named}, text

    with listening(answer) as url:
        assert probe(Wire(url)).eras[0].dialects == ["transport header"]


def test_what_is_no_mcp_server_is_said_to_be_none() -> None:
    """It answered, but not so: a guard may want a token."""
    with listening(lambda verb, headers, body: (401, {}, b"who are you?")) as url:
        report = probe(Wire(url))
    assert report.stopped == "no MCP server answers there: HTTP 401, no JSON-RPC answer"
    assert (report.eras, report.findings) == ([], [])


def test_where_no_more_may_be_sent_it_stops() -> None:
    """What was found so far stands, and the report says that it is not all."""
    with listening(Faulty()) as url:
        report = probe(Wire(url, requests=20))
    assert report.stopped is not None
    assert "stopped after 20 requests" in report.as_text()
    assert (report.requests, report.holds) == (20, False)
    assert len(report.findings) > 5


def test_one_request_without_an_answer_fails_its_rule_alone() -> None:
    """The others are tried all the same."""
    server = Faulty()

    def answer(verb: str, headers: Mapping[str, str], body: bytes) -> Reply:
        if b"AAAAAAAA" in body:
            return 200, {}, b" " * (MAX_BYTES + 1)
        return server(verb, headers, body)

    with listening(answer) as url:
        report = probe(Wire(url))
    assert [(one.rule, one.seen) for one in report.findings if one.outcome == "fails"] == [
        ("oversized", f"an answer of more than {MAX_BYTES} bytes")
    ] * 2


def test_a_server_that_sends_its_callers_elsewhere_is_not_examined() -> None:
    """Nor is where it sends them."""
    elsewhere = {"location": "/elsewhere"}
    with (
        listening(lambda verb, headers, body: (308, elsewhere, b"")) as url,
        pytest.raises(ConfigurationError, match="a redirect"),
    ):
        probe(Wire(url))
