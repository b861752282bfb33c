"""What the probe sends, what it takes for an answer, and how long it waits for one."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from http.client import HTTPConnection
from socket import create_server
from ssl import SSLCertVerificationError
from threading import Event, Thread
from typing import Any

import pytest
from clients import LEGACY, MODERN, SESSION_KEY
from faulty import CAPABILITIES_KEY, VERSION_KEY, Answering, Faulty, Reply, json_reply, listening

from mcp_sessions._cli.probe import Report, probe
from mcp_sessions._cli.probe_client import Unanswered, Wire


class Recorder:
    """A server behind which another one answers, which keeps what came.

    Args:
        server: The other one.
        headers: Headers of its answers to `initialize`, by the message.
    """

    def __init__(self, server: Answering, headers: Callable[[Any], dict[str, str]] = lambda message: {}) -> None:
        self.server = server
        self.more = headers
        self.seen: list[tuple[str, Mapping[str, str], Any]] = []

    def __call__(self, verb: str, headers: Mapping[str, str], body: bytes) -> Reply:
        message = json.loads(body or b"{}")
        self.seen.append((verb, headers, message))
        status, kind, text = self.server(verb, headers, body)
        more = self.more(message) if message.get("method") == "initialize" else {}
        return status, {**kind, **more}, text

    def requests(self, version: str) -> list[tuple[str, str | None, str | None]]:
        """Verb, method and transport session of what came in one era."""
        return [
            (verb, message.get("method"), headers.get("mcp-session-id"))
            for verb, headers, message in self.seen
            if headers["mcp-protocol-version"] == version
        ]


def examined(server: Answering, *, query: str = "") -> Report:
    """What the probe says of a server."""
    with listening(server) as url:
        return probe(Wire(f"{url}{query}"))


def result(capabilities: dict[str, Any], **members: Any) -> Answering:
    """A server that answers everything with these capabilities."""

    def answer(verb: str, headers: Mapping[str, str], body: bytes) -> Reply:
        message = json.loads(body or b"{}")
        return json_reply({"id": message.get("id"), "result": {"capabilities": capabilities, **members}})

    return answer


# --- what is sent --------------------------------------------------------------------------------


def test_every_request_goes_to_the_address_as_it_was_typed() -> None:
    """With its query; it takes JSON and event streams."""
    server = Recorder(Faulty())
    assert examined(server, query="?tenant=a").holds
    assert {headers[":path"] for _, headers, _ in server.seen} == {"/mcp?tenant=a"}
    assert {headers["accept"] for _, headers, _ in server.seen} == {"application/json, text/event-stream"}


def test_an_address_without_a_path_is_the_root() -> None:
    server = Recorder(Faulty())
    with listening(server) as url:
        assert probe(Wire(url.removesuffix("/mcp"))).holds
    assert {headers[":path"] for _, headers, _ in server.seen} == {"/"}


def test_the_legacy_era_begins_with_a_handshake() -> None:
    """Its answer names the version that is spoken, and the transport session that is carried from then on."""
    server = Recorder(
        result({"prompts": {}, "sessions": {}}, protocolVersion="2025-03-26"), lambda message: {"mcp-session-id": "own"}
    )
    report = examined(server)
    assert (report.eras[0].version, report.eras[0].dialects) == (
        "2025-03-26",
        ["draft", "transport sessions of its own"],
    )
    assert server.requests(LEGACY)[0] == ("POST", "initialize", None)
    later = server.requests("2025-03-26")
    assert later[0] == ("POST", "notifications/initialized", "own")
    assert {transport for _, _, transport in later} == {"own"}
    assert "prompts/list" in {method for _, method, _ in later}


def test_the_modern_era_has_an_envelope() -> None:
    """In `_meta` and in the headers, unless a rule tries what happens without it."""
    server = Recorder(Faulty())
    assert examined(server).holds
    modern = [(headers, message) for _, headers, message in server.seen if VERSION_KEY in str(message)]
    assert {message["params"]["_meta"][VERSION_KEY] for _, message in modern} == {MODERN}
    assert {headers["mcp-protocol-version"] for headers, _ in modern} == {MODERN}
    bare = [message["method"] for _, message in modern if CAPABILITIES_KEY not in message["params"]["_meta"]]
    other = [message["method"] for headers, message in modern if headers["mcp-method"] != message["method"]]
    assert bare == other == ["sessions/create"]
    assert any(SESSION_KEY in message["params"]["_meta"] for _, message in modern)


def test_a_server_without_lists_is_asked_something_else_that_is_harmless() -> None:
    server = Recorder(result({"sessions": {}}))
    examined(server)
    assert "ping" in {method for _, method, _ in server.requests(LEGACY)}
    assert {"tools/list", "prompts/list"}.isdisjoint(method for _, method, _ in server.requests(MODERN))


def test_a_strange_version_is_not_repeated() -> None:
    """Later requests name the version that was asked for."""
    server = Recorder(result({}, protocolVersion="2025-11-25\n"))
    examined(server)
    assert {headers["mcp-protocol-version"] for _, headers, _ in server.seen} == {LEGACY, MODERN}


def test_a_transport_session_for_other_clients_is_noticed_and_ended() -> None:
    """As this package's middleware names one, to clients alone that do not know sessions."""
    server = Recorder(
        result({}),
        lambda message: {} if "experimental" in message["params"]["capabilities"] else {"mcp-session-id": "named"},
    )
    assert examined(server).eras[0].dialects == ["transport header"]
    assert server.requests(LEGACY) == [
        ("POST", "initialize", None),
        ("POST", "initialize", None),
        ("DELETE", None, "named"),
        ("POST", "notifications/initialized", None),
    ]


@pytest.mark.parametrize("value", ["2025\u2713", "a\r\nb: c"])
def test_a_header_that_cannot_be_sent_is_not(value: str) -> None:
    """Some headers repeat what the server wrote; it is not repeated in the message."""
    with listening(Faulty()) as url, pytest.raises(Unanswered, match=r"^the server's text cannot be sent in a header$"):
        Wire(url).send({"id": 1, "method": "ping"}, {"Mcp-Session-Id": value})


# --- what is an answer ---------------------------------------------------------------------------


def test_an_answer_may_come_in_an_event_stream() -> None:
    server = Faulty()
    note = {"jsonrpc": "2.0", "method": "notifications/message"}

    def answer(verb: str, headers: Mapping[str, str], body: bytes) -> Reply:
        status, _, text = server(verb, headers, body)
        messages = [note, {"id": "another", "result": {}}, json.loads(text or b"{}"), note]
        stream = b": a comment\n\n" + b"".join(b"data: %b\n\n" % json.dumps(one).encode() for one in messages)
        return status, {"content-type": "text/event-stream"}, stream

    assert examined(answer).holds


def test_a_stream_without_an_answer_is_no_answer() -> None:
    report = examined(lambda verb, headers, body: (200, {"content-type": "text/event-stream"}, b"data: {}\n\n"))
    assert report.stopped == "no MCP server answers there: HTTP 200, no JSON-RPC answer"


def test_an_error_without_an_id_answers_too() -> None:
    """A request that could not be read has no id."""
    server = Faulty()

    def answer(verb: str, headers: Mapping[str, str], body: bytes) -> Reply:
        status, kind, text = server(verb, headers, body)
        message = json.loads(text or b"{}")
        return (status, kind, json.dumps({**message, "id": None}).encode()) if "error" in message else (200, kind, text)

    assert examined(answer).holds


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (200, b"", "no JSON-RPC answer"),
        (200, b"{", "no JSON-RPC answer"),
        (200, b"[" * 100_000, "no JSON-RPC answer"),
        (200, b"[]", "no JSON-RPC answer"),
        (200, b'{"id":1,"result":[]}', "no JSON-RPC answer"),
        (200, b'{"id":8,"result":{}}', "no JSON-RPC answer"),
        (200, b'{"id":1,"result":{"a":1}}', "a result"),
        (200, b'{"id":1,"result":{"capabilities":[]}}', "a result"),
        (200, b'{"id":1,"error":{"code":"\x1b[2J"}}', "no JSON-RPC answer"),
        (200, b'{"id":1,"error":{"code":"-32043 or so"}}', "an error without a code"),
        (400, b'{"id":1,"error":{"code":-32600}}', "error -32600"),
        (401, b"who are you?", "no JSON-RPC answer"),
    ],
)
def test_an_answer_is_described_in_words_that_are_not_the_server_s(status: int, body: bytes, words: str) -> None:
    """It may have written anything; a guard may want a token."""
    report = examined(lambda verb, headers, _: (status, {"content-type": "application/json"}, body))
    assert report.stopped == f"no MCP server answers there: HTTP {status}, {words}"
    assert (report.eras, report.findings, report.holds) == ([], [], False)


# --- how long it waits ---------------------------------------------------------------------------


def test_an_answer_that_does_not_end_is_no_answer() -> None:
    """Its time is over, though more comes again and again."""
    now = iter([0.0, 0.0, 0.0, 11.0])
    with listening(Faulty()) as url:
        assert probe(Wire(url, clock=lambda: next(now))).stopped == "an answer that does not end"


def test_a_silent_server_is_waited_for_so_long() -> None:
    with closing(create_server(("127.0.0.1", 0))) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        assert probe(Wire(url, seconds=0.05)).stopped == "no answer within 10 s"


DRIPS = {
    "headers": (b"HTTP/1.1 200 OK\r\n", b"x"),
    "chunk extensions": (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1;", b"x"),
    "continue": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
}


@pytest.mark.parametrize("drip", DRIPS)
def test_a_server_that_drips_is_left_in_time(drip: str) -> None:
    """Each byte would begin a socket's timeout anew."""
    begin, more = DRIPS[drip]
    ended = Event()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            connection.sendall(begin)
            while not ended.wait(0.01):
                connection.sendall(more)

    with closing(create_server(("127.0.0.1", 0))) as listener:
        server = Thread(target=serve)
        server.start()
        begun = time.monotonic()
        stopped = probe(Wire(f"http://127.0.0.1:{listener.getsockname()[1]}/", seconds=0.2)).stopped
        assert (stopped, time.monotonic() - begun < 5) == ("no answer within 10 s", True)
        ended.set()
        server.join()


def test_a_server_without_tls_is_no_answer_over_tls() -> None:
    with listening(Faulty()) as url:
        stopped = probe(Wire(url.replace("http:", "https:"))).stopped
    assert str(stopped).startswith("the connection failed (SSL")


def test_a_refused_certificate_is_the_connection_s_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has nothing to do with headers, though that error is a `ValueError`, too."""

    def refuse(connection: HTTPConnection) -> None:
        raise SSLCertVerificationError

    monkeypatch.setattr(HTTPConnection, "connect", refuse)
    assert probe(Wire("http://h.example/")).stopped == "the connection failed (SSLCertVerificationError)"
