"""Reading the head of a request: which headers count, and which copy of them."""

from __future__ import annotations

import pytest
from reasons import refused

from mcp_sessions._protocol.headers import (
    CODING,
    HANDSHAKE_VERSIONS,
    LENGTH,
    METHOD,
    SESSION_HEADER,
    VERSION,
    Header,
    RequestHeaders,
    content_type,
    edit,
    independent_of_body,
    runtime_without_cookies,
    single_header,
)


def test_a_request_without_headers_has_an_empty_head() -> None:
    head = RequestHeaders([])
    assert (head.first(VERSION), head.all(CODING), head.first(LENGTH)) == (None, [], None)
    assert (head.all(SESSION_HEADER), head.all(METHOD)) == ([], [])
    assert not head.is_modern
    assert not head.is_json


def test_every_header_that_decides_something_is_read() -> None:
    head = RequestHeaders(
        [
            (b"host", b"example"),
            (b"mcp-protocol-version", b"2026-07-28"),
            (b"content-type", b"application/json"),
            (b"content-encoding", b"gzip"),
            (b"content-length", b"12"),
            (b"mcp-session-id", b"one"),
            (b"mcp-method", b"ping"),
        ]
    )
    assert (head.first(VERSION), head.all(CODING), head.first(LENGTH)) == ("2026-07-28", ["gzip"], "12")
    assert (head.all(SESSION_HEADER), head.all(METHOD), head.is_json) == (["one"], ["ping"], True)


def test_the_first_copy_of_a_header_counts() -> None:
    """As in the official SDK: a second version or type changes nothing."""
    head = RequestHeaders([(b"mcp-protocol-version", b""), (b"mcp-protocol-version", b"2025-11-25")])
    assert head.first(VERSION) == ""
    assert head.is_modern


def test_every_copy_of_the_session_and_method_headers_is_kept() -> None:
    """A second copy refuses the request, so it must be seen."""
    head = RequestHeaders(
        [(b"mcp-session-id", b"a"), (b"mcp-method", b"x"), (b"mcp-session-id", b"\xff"), (b"mcp-method", b"y")]
    )
    assert head.all(SESSION_HEADER) == ["a", "\xff"]
    assert head.all(METHOD) == ["x", "y"]


def test_a_second_content_type_does_not_hide_the_first() -> None:
    """Some servers read the first copy and some the last."""
    headers = [(b"content-type", b"text/plain"), (b"content-type", b"application/json")]
    assert RequestHeaders(headers).is_json
    assert RequestHeaders(headers[::-1]).is_json


@pytest.mark.parametrize(
    "version", [*sorted(HANDSHAKE_VERSIONS), "2026-07-28", "2099-01-01", "2025-11-25 ", "nonsense", ""]
)
def test_every_version_is_modern_but_those_of_the_handshake(version: str) -> None:
    modern = RequestHeaders([(b"mcp-protocol-version", version.encode())]).is_modern
    assert modern is (version not in HANDSHAKE_VERSIONS)


@pytest.mark.parametrize(
    "kind",
    [
        *("application/json", "Application/JSON", "application/json; charset=utf-8", " application/json ;"),
        *("application/json, text/plain", "text/plain, application/json", "application/jsonx", "text/json"),
    ],
)
def test_what_a_server_might_take_for_json_is_json(kind: str) -> None:
    """The official SDK takes a type that only begins with it, or a list that holds it: no way around a policy."""
    assert RequestHeaders([(b"content-type", kind.encode())]).is_json


@pytest.mark.parametrize(
    "kind", ["application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/plain", "", "image/png"]
)
def test_other_types_are_not_json(kind: str) -> None:
    assert not RequestHeaders([(b"content-type", kind.encode())]).is_json


def test_headers_are_edited_by_name() -> None:
    """Every copy of a name goes, and what is added stands last."""
    headers = [(b"a", b"1"), (b"b", b"a"), (b"a", b"2")]
    assert edit(headers, drop=[b"a"], add=[(b"c", b"3")]) == [(b"b", b"a"), (b"c", b"3")]
    assert edit(headers) == headers


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([], (b"", None)),
        ([(b"x", b"gzip")], (b"", None)),
        ([(b"Content-Type", b" Application/JSON ; charset=utf-8; x=;")], (b"application/json", None)),
        ([(b"content-type", b"text/event-stream"), (b"Content-Encoding", b"gzip")], (b"text/event-stream", b"gzip")),
        ([(b"content-encoding", b"Identity"), (b"content-type", b"a/b")], (b"a/b", None)),
    ],
)
def test_a_response_has_a_media_type_and_perhaps_a_coding(
    headers: list[Header], expected: tuple[bytes, bytes | None]
) -> None:
    assert content_type(headers) == expected


def test_what_depends_on_a_body_goes_when_that_changes() -> None:
    headers = [(b"Content-Length", b"1"), (b"ETag", b"x"), (b"x", b"etag")]
    assert independent_of_body(headers) == [(b"x", b"etag")]


def test_of_two_session_headers_none_counts() -> None:
    assert single_header(["one"]) == "one"
    with refused("duplicate_session_header"):
        single_header(["one", "one"])


@pytest.mark.parametrize(
    ("agent", "expected"),
    [
        (None, None),
        ("node", "node"),
        ("ai-sdk/mcp/2.0 runtime/Node.js/24", None),
        ("shop/1.0 Node.js/24.1 more", "node.js"),
        ("Mozilla/5.0 (X11) Deno/2", None),
        ("python-httpx/0.28", None),
        ("Go-http-client/2.0", "go-http-client"),
    ],
)
def test_some_runtimes_keep_no_cookies(agent: str | None, expected: str | None) -> None:
    """By the products that the User-Agent names; a browser names what it likes."""
    headers = RequestHeaders([] if agent is None else [(b"user-agent", agent.encode())])
    assert runtime_without_cookies(headers) == expected
