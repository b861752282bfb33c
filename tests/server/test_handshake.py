"""handshake.py: a session is named in the head of a successful `initialize`, and of nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_sessions._server.response import Handshake

RESULT = b'{"jsonrpc":"2.0","id":1,"result":{}}'
ERROR = b'{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"no"}}'
EVENT = b"data: %b\n\n"


class Minting:
    """Mints one id, and counts how often it was asked."""

    def __init__(self, session_id: str | None = "new") -> None:
        self.session_id = session_id
        self.asked = 0

    async def __call__(self) -> str | None:
        self.asked += 1
        return self.session_id


def start(status: int = 200, *headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": [(b"x", b"y"), *headers]}


def body(text: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": text, "more_body": more}


async def sent(minting: Minting, *messages: dict[str, Any]) -> list[dict[str, Any]]:
    """What goes out when an application sends these."""
    out: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        out.append(message)

    handshake = Handshake(send, b"1", minting)
    for message in messages:
        await handshake(message)
    return out


async def test_a_successful_json_answer_names_the_session() -> None:
    """Its own headers and its body stay as they are."""
    minting = Minting()
    named = start(200, (b"mcp-session-id", b"new"))
    assert await sent(minting, start(), body(RESULT)) == [named, body(RESULT)]
    assert minting.asked == 1


async def test_the_head_of_a_stream_waits_for_the_result() -> None:
    """A priming event and notifications are held with it, and what comes later passes at once."""
    minting = Minting()
    messages = [
        body(b"id: 1\ndata: \n\n", more=True),
        body(EVENT % RESULT, more=True),
        body(EVENT % RESULT, more=True),
        body(b""),
    ]
    named = start(200, (b"mcp-session-id", b"new"))
    assert await sent(minting, start(), *messages) == [named, *messages]
    assert minting.asked == 1


@pytest.mark.parametrize("text", [ERROR, EVENT % ERROR, b"hello", b'{"jsonrpc":"2.0","id":2,"result":{}}', b""])
async def test_an_answer_that_is_no_success_names_none(text: bytes) -> None:
    """A failed `initialize` is an HTTP 200 in a stream, too."""
    minting = Minting()
    assert await sent(minting, start(), body(text)) == [start(), body(text)]
    assert minting.asked == 0


@pytest.mark.parametrize("head", [start(202), start(401), start(200, (b"Mcp-Session-Id", b"its own"))])
async def test_other_answers_pass_as_they_come(head: dict[str, Any]) -> None:
    """A server that names a session keeps it."""
    minting = Minting()
    assert await sent(minting, head, body(RESULT)) == [head, body(RESULT)]
    assert minting.asked == 0


async def test_where_no_session_is_to_be_had_the_answer_goes_out_as_it_is() -> None:
    """The client goes on without one."""
    assert await sent(Minting(None), start(), body(RESULT)) == [start(), body(RESULT)]


async def test_what_comes_before_the_head_passes() -> None:
    """Early hints, for example."""
    hint = {"type": "http.response.early_hint", "links": []}
    assert (await sent(Minting(), hint, start(), body(RESULT)))[0] == hint
