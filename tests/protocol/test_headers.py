"""Reading the head of a request: which headers count, and which copy of them."""

from __future__ import annotations

import pytest

from mcp_sessions._protocol.headers import (
    HANDSHAKE_VERSIONS,
    SESSION_HEADER,
    VERSION,
    RequestHeaders,
    edit,
    independent_of_body,
)


def test_the_first_copy_of_a_header_counts_and_none_is_lost() -> None:
    """As in the official SDK; a second session or method header refuses the request, so it must be seen."""
    pairs = [(b"mcp-protocol-version", b""), (b"mcp-protocol-version", b"2025-11-25")]
    head = RequestHeaders([*pairs, (b"mcp-session-id", b"a"), (b"host", b"x"), (b"mcp-session-id", b"\xff")])
    assert (head.first(VERSION), head.is_modern, head.all(SESSION_HEADER)) == ("", True, ["a", "\xff"])
    empty = RequestHeaders([])
    assert (empty.first(VERSION), empty.is_modern, empty.all(SESSION_HEADER)) == (None, False, [])


@pytest.mark.parametrize("version", [*sorted(HANDSHAKE_VERSIONS), "2026-07-28", "2025-11-25 ", ""])
def test_every_version_is_modern_but_those_of_the_handshake(version: str) -> None:
    modern = RequestHeaders([(b"mcp-protocol-version", version.encode())]).is_modern
    assert modern is (version not in HANDSHAKE_VERSIONS)


@pytest.mark.parametrize(
    ("kinds", "is_json"),
    [
        *(([kind], True) for kind in ("Application/JSON; charset=utf-8", "application/jsonx", "text/json")),
        *(([kind], True) for kind in ("text/plain, application/json", " application/json ;")),
        (["text/plain", "application/json"], True),
        *(([kind], False) for kind in ("application/x-www-form-urlencoded", "text/plain", "")),
        ([], False),
    ],
)
def test_what_a_server_might_take_for_json_is_json(kinds: list[str], is_json: bool) -> None:
    """In whichever copy of the header; the official SDK takes a type that only begins with it, or a list with it."""
    assert RequestHeaders([(b"content-type", kind.encode()) for kind in kinds]).is_json is is_json


def test_headers_are_edited_by_name() -> None:
    """Every copy of a name goes, what is added stands last, and what depends on a body goes with it."""
    headers = [(b"a", b"1"), (b"b", b"a"), (b"a", b"2")]
    assert edit(headers, drop=[b"a"], add=[(b"c", b"3")]) == [(b"b", b"a"), (b"c", b"3")]
    assert edit(headers) == headers
    assert independent_of_body([(b"Content-Length", b"1"), (b"ETag", b"x"), (b"x", b"etag")]) == [(b"x", b"etag")]
