"""One server over HTTP: what is asked, what is taken for an answer, and where it ends."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import closing
from http.client import HTTPConnection
from socket import create_server
from ssl import SSLCertVerificationError

import pytest
from faulty import Reply, json_reply, listening

from mcp_sessions.cli import probe_client
from mcp_sessions.cli.probe_client import Answer, Exhausted, Redirected, Unanswered, Wire
from mcp_sessions.errors import ConfigurationError

ASKED = {"jsonrpc": "2.0", "id": 7, "method": "ping"}
DONE = {"jsonrpc": "2.0", "id": 7, "result": {}}


def events(*messages: object) -> Reply:
    """An event stream."""
    body = b"".join(b"data: %b\n\n" % json.dumps(message).encode() for message in messages)
    return 200, {"content-type": "text/event-stream"}, body


def asked(reply: Reply) -> Answer:
    """What is read of a reply."""
    with listening(lambda verb, headers, body: reply) as url:
        return Wire(url).post(ASKED, {})


def right(verb: str, headers: Mapping[str, str], body: bytes) -> Reply:
    """A server that answers."""
    return json_reply(DONE)


# --- what is asked -------------------------------------------------------------------------------


def test_a_request_says_what_it_takes_and_who_asks() -> None:
    """With the token where there is one, at the address as it was typed, query and all."""
    seen: list[tuple[str, Mapping[str, str], bytes]] = []

    def answer(verb: str, headers: Mapping[str, str], body: bytes) -> Reply:
        seen.append((verb, headers, body))
        return json_reply(DONE)

    with listening(answer) as url:
        way = Wire(f"{url}?tenant=a", bearer="a-token")
        assert way.post(ASKED, {"Mcp-Method": "ping"}).result == {}
        way.post(None, {}, verb="DELETE")
    (verb, headers, body), (other, _, nothing) = seen
    assert (verb, json.loads(body), other, nothing) == ("POST", ASKED, "DELETE", b"")
    assert (headers["authorization"], headers["mcp-method"]) == ("Bearer a-token", "ping")
    assert headers["accept"] == "application/json, text/event-stream"
    assert way._target == "/mcp?tenant=a"
    assert Wire("http://h.example")._target == "/"


@pytest.mark.parametrize(
    "url",
    [
        *("", "host.example/mcp", "ftp://host.example/mcp", "file:///etc/passwd", "http://", "http:///mcp"),
        *(
            "http://h.example:0/",
            "http://h.example:x/",
            "http://h.example/a b",
            "http://h.example/\n",
            "http://h\u00e9/",
        ),
        *("http://h..example/", f"http://{'h' * 64}.example/"),
        *("http://user@h.example/", "http://user:pass@h.example/", "http://h.example/#there", "http://[::1/"),
    ],
)
def test_what_is_no_address_of_a_server_is_refused(url: str) -> None:
    """Nothing is sent; a password in it is not repeated."""
    with pytest.raises(ConfigurationError, match="the URL must") as refused:
        Wire(url)
    assert "pass@" not in str(refused.value)


# --- what is an answer ---------------------------------------------------------------------------


def test_an_answer_is_read_whole_or_from_an_event() -> None:
    """Whatever else comes on the stream."""
    assert asked(json_reply(DONE)).result == {}
    note = {"jsonrpc": "2.0", "method": "notifications/message"}
    assert asked(events(note, {**DONE, "id": 6}, DONE, note)).message == DONE
    assert asked(events(note)).message is None


def test_an_error_without_an_id_answers_too() -> None:
    """What could not be read has no id."""
    refused = {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "no"}}
    answer = asked(json_reply(refused, 400))
    assert (answer.code, answer.refuses, str(answer)) == (-32600, True, "HTTP 400, error -32600")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "no JSON-RPC answer"),
        (b"{", "no JSON-RPC answer"),
        (b"[" * 100_000, "no JSON-RPC answer"),
        (b"[]", "no JSON-RPC answer"),
        (b'{"id":7,"result":[]}', "no JSON-RPC answer"),
        (b'{"id":8,"result":{}}', "no JSON-RPC answer"),
        (b'{"id":7,"result":{"a":1}}', "a result"),
        (b'{"id":7,"error":{"code":"\x1b[2J"}}', "no JSON-RPC answer"),
        (b'{"id":7,"error":{"code":"-32043 or so"}}', "an error without a code"),
    ],
)
def test_an_answer_is_told_in_words_that_are_not_the_server_s(body: bytes, said: str) -> None:
    """It may have written anything."""
    assert str(asked((200, {"content-type": "application/json"}, body))) == f"HTTP 200, {said}"


def test_an_http_error_refuses_without_a_word() -> None:
    """As guards do that know nothing of JSON-RPC."""
    answer = asked((401, {}, b"who are you?"))
    assert (answer.refuses, answer.error, answer.result) == (True, None, None)


# --- where it ends -------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_nobody_is_followed_elsewhere(status: int) -> None:
    """Not even to the same server: the address is the one that was typed."""
    with pytest.raises(Redirected, match=f"HTTP {status}, a redirect: type the URL"):
        asked((status, {"location": "http://169.254.169.254/"}, b""))


def test_an_answer_that_is_too_large_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever sends more wants something else."""
    monkeypatch.setattr(probe_client, "MAX_BYTES", 1000)
    with pytest.raises(Unanswered, match="more than 1000 bytes"):
        asked((200, {}, b" " * 1001))


def test_an_answer_that_does_not_end_is_none() -> None:
    """Its time is over, though something comes again and again."""
    now = iter([0.0, 0.0, 0.0, 11.0])
    with listening(right) as url, pytest.raises(Unanswered, match="does not end"):
        Wire(url, clock=lambda: next(now)).post(ASKED, {})


def test_a_server_that_says_nothing_is_waited_for_so_long() -> None:
    """And no longer."""
    with closing(create_server(("127.0.0.1", 0))) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(Unanswered, match="no answer within"):
            Wire(f"http://127.0.0.1:{port}/", seconds=0.05).post(ASKED, {})
    with pytest.raises(Unanswered, match=r"the connection failed \(ConnectionRefusedError\)"):
        Wire(f"http://127.0.0.1:{port}/").post(ASKED, {})


def test_what_is_no_tls_is_no_answer() -> None:
    """Where the address asks for it."""
    with listening(right) as url, pytest.raises(Unanswered, match=r"the connection failed \(SSL"):
        Wire(url.replace("http:", "https:")).post(ASKED, {})


@pytest.mark.parametrize("said", ["2025\u2713", "a\r\nb: c"])
def test_what_cannot_stand_in_a_header_is_not_sent(said: str) -> None:
    """Some headers repeat what the server said; it is not repeated in the message."""
    with listening(right) as url, pytest.raises(Unanswered, match=r"^the server's words cannot stand in a header$"):
        Wire(url).post(ASKED, {"Mcp-Session-Id": said})


def test_a_certificate_that_is_refused_is_the_connection_s_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no matter of headers, though that error is a `ValueError`, too."""

    def refuse(connection: HTTPConnection) -> None:
        raise SSLCertVerificationError

    monkeypatch.setattr(HTTPConnection, "connect", refuse)
    with pytest.raises(Unanswered, match=r"the connection failed \(SSLCertVerificationError\)"):
        Wire("http://h.example/").post(ASKED, {})


@pytest.mark.parametrize(("requests", "seconds"), [(2, 60.0), (9, 1.5)])
def test_requests_and_time_are_bounded(requests: int, seconds: float) -> None:
    """Whichever is spent first."""
    now = [0.0]

    def later() -> float:
        now[0] += 0.125
        return now[0]

    clock: Callable[[], float] = later
    with listening(right) as url:
        way = Wire(url, requests=requests, seconds=seconds, clock=clock)
        with pytest.raises(Exhausted, match="no more may be spent"):
            _ = [way.post(ASKED, {}) for _ in range(9)]
    assert 0 < way.spent < 9
