"""Taking a body in: bounded in bytes and seconds, whole or in pieces, and given back exactly once."""

from __future__ import annotations

import tracemalloc
from contextlib import nullcontext

import anyio
import pytest
from anyio.lowlevel import checkpoint
from apps import Server, sessions
from clients import Client, Header, Incoming, chunks
from hypothesis import example, given
from hypothesis import strategies as st
from reasons import refused
from starlette.types import Message, Receive

from mcp_sessions._errors import Refusal
from mcp_sessions._protocol.headers import RequestHeaders
from mcp_sessions._server.body import read_body


async def read(receive: Receive, *headers: Header, max_bytes: int = 10, timeout: float = 30) -> bytes:
    return await read_body(receive, RequestHeaders(headers), max_bytes=max_bytes, timeout=timeout)


def slow(*messages: Message) -> Receive:
    """A `receive` that lets other tasks run before each message, as a socket does."""
    incoming = Incoming(*messages)

    async def receive() -> Message:
        await checkpoint()
        return await incoming()

    return receive


@given(st.lists(st.binary(max_size=4), min_size=1, max_size=10))
@example([b"0123", b"4567", b"89"])
@example([b"0123", b"", b"4567", b"89a"])
@example([b""])
def test_a_body_is_judged_by_its_size_alone(pieces: list[bytes]) -> None:
    """It arrives whole however it was cut, at once or piece by piece; cutting it neither saves nor condemns it."""
    body = b"".join(pieces)

    async def attempt(receive: Receive) -> bytes | None:
        try:
            return await read(receive)
        except Refusal as refusal:
            assert refusal.reason == "body_too_large"
            return None

    for receive in (Incoming(*chunks(*pieces)), slow(*chunks(*pieces))):
        assert anyio.run(attempt, receive) == (body if len(body) <= 10 else None)


async def test_small_pieces_cost_no_more_than_what_they_hold() -> None:
    """A sender chooses how it cuts its body, and ten thousand connections may do so at once."""
    size = 60_000
    left = [size // 2]

    async def receive() -> Message:
        left[0] -= 1
        return {"type": "http.request", "body": b"%02d" % (left[0] % 100), "more_body": left[0] > 0}

    await read(Incoming(*chunks(b"a", b"b")), max_bytes=size)
    tracemalloc.start()
    try:
        assert len(await read(receive, max_bytes=size)) == size
        assert tracemalloc.get_traced_memory()[1] < 2.1 * size
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("name", "values", "reason"),
    [
        *(("content-length", [value], "body_too_large") for value in ("11", "9" * 5000)),
        *(("content-length", [value], None) for value in ("10", "-11", "x", "1e9")),
        *(("content-encoding", [value], "content_encoding") for value in ("gzip", "identity, gzip")),
        ("content-encoding", ["identity", "gzip"], "content_encoding"),
        *(("content-encoding", [value], None) for value in ("", " Identity ")),
    ],
)
async def test_what_its_headers_say_refuses_it_unread(name: str, values: list[str], reason: str | None) -> None:
    """A length that is too large; one that fits is not trusted. Nobody reads compressed bytes, nor do we."""
    receive = Incoming(*chunks(b"{}"))
    with nullcontext() if reason is None else refused(reason):
        assert await read(receive, *((name.encode(), value.encode()) for value in values)) == b"{}"
    assert bool(receive.messages) is (reason is not None)


@pytest.mark.parametrize(
    ("arrived", "timeout", "reason"),
    [
        # half a message is never taken for a whole one
        *(([*chunks(*[b"x"] * 3)[:count], {"type": "http.disconnect"}], 30, "body_cut_short") for count in range(3)),
        # its beginning came with the headers; a client that sends headers alone is the server's matter
        (chunks(b"x", b"")[:1], 0.001, "body_timeout"),
        # what comes after the limit is never asked for: a sender without end cannot fill the memory
        (chunks(b"x" * 6, b"x" * 6, b"x" * 6)[:2], 30, "body_too_large"),
    ],
)
async def test_a_body_that_does_not_come_whole_is_refused(arrived: list[Message], timeout: float, reason: str) -> None:
    for receive in (Incoming(*arrived), slow(*arrived)):
        with anyio.fail_after(5), refused(reason):
            await read(receive, timeout=timeout)


@pytest.mark.parametrize("timeout", [30, 0.001])
async def test_a_receive_that_opens_scopes_of_its_own_is_served(timeout: float) -> None:
    """Starlette's `BaseHTTPMiddleware` waits in a task group: our time limit lies around it, never inside."""
    events = iter(chunks(b"{", b"}"))

    async def receive() -> Message:
        event = next(events)
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep_forever)
            if timeout == 30 or event["more_body"]:
                group.cancel_scope.cancel()
        return event

    with nullcontext() if timeout == 30 else refused("body_timeout"):
        assert await read(receive, timeout=timeout) == b"{}"


@pytest.mark.parametrize(("version", "closes"), [("1.0", True), ("1.1", True), ("2", False)])
@pytest.mark.parametrize(("length", "status"), [(b"301", 413), (b"5", 200)])
async def test_a_connection_whose_body_is_not_awaited_is_closed(
    version: str, closes: bool, length: bytes, status: int
) -> None:
    """Or its rest could come forever. HTTP/2 has streams, and forbids the header."""
    client = Client(sessions(Server(), max_body_bytes=300), modern=False, http_version=version)
    answer = await client.post({"jsonrpc": "2.0", "id": 1, "method": "ping"}, (b"content-length", length))
    assert answer.status == status
    assert answer.headers.get(b"connection") == (b"close" if closes and status == 413 else None)
