"""Taking a body in: bounded in bytes and seconds, whole or in pieces, and given back exactly once."""

from __future__ import annotations

import tracemalloc

import anyio
import pytest
from anyio.lowlevel import checkpoint
from apps import Server, sessions
from clients import Client, Incoming, chunks
from hypothesis import given
from hypothesis import strategies as st
from reasons import refused
from starlette.types import Message, Receive

from mcp_sessions._errors import Refusal
from mcp_sessions._protocol.headers import RequestHeaders
from mcp_sessions._server.body import read_body

DISCONNECT: Message = {"type": "http.disconnect"}


class Slow:
    """A `receive` that lets other tasks run before each message, as a socket does."""

    def __init__(self, *messages: Message) -> None:
        self._incoming = Incoming(*messages)

    async def __call__(self) -> Message:
        await checkpoint()
        await checkpoint()
        return await self._incoming()


async def read(receive: Receive, head: RequestHeaders, *, max_bytes: int, timeout: float) -> bytes:
    """The body, whether it was there at once or had to be awaited."""
    return await read_body(receive, head, max_bytes=max_bytes, timeout=timeout)


async def take(
    *messages: Message, head: RequestHeaders | None = None, slow: bool = False, timeout: float = 30
) -> bytes:
    receive = Slow(*messages) if slow else Incoming(*messages)
    return await read(receive, head or RequestHeaders([]), max_bytes=10, timeout=timeout)


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("pieces", [[b""], [b"0123456789"], [b"01234", b"", b"56789"], [b"%d" % n for n in range(10)]])
async def test_a_body_arrives_whole_however_it_was_cut(pieces: list[bytes], slow: bool) -> None:
    """One chunk with the head, or many one by one."""
    assert await take(*chunks(*pieces), slow=slow) == b"".join(pieces)


@given(st.lists(st.binary(max_size=4), min_size=1, max_size=6))
def test_size_is_judged_by_the_sum_alone(pieces: list[bytes]) -> None:
    """Cutting a body differently neither saves nor condemns it."""
    body = b"".join(pieces)

    async def attempt() -> bytes | None:
        try:
            return await take(*chunks(*pieces))
        except Refusal as refusal:
            assert refusal.reason == "body_too_large"
            return None

    assert anyio.run(attempt) == (body if len(body) <= 10 else None)


async def test_small_pieces_cost_no_more_than_what_they_hold() -> None:
    """A sender chooses how it cuts its body, and ten thousand connections may do so at once."""
    size = 60_000
    left = [size // 2]

    async def receive() -> Message:
        left[0] -= 1
        return {"type": "http.request", "body": b"%02d" % (left[0] % 100), "more_body": left[0] > 0}

    await read(Incoming(*chunks(b"a", b"b")), RequestHeaders([]), max_bytes=size, timeout=30)
    tracemalloc.start()
    try:
        assert len(await read(receive, RequestHeaders([]), max_bytes=size, timeout=30)) == size
        assert tracemalloc.get_traced_memory()[1] < 2.1 * size
    finally:
        tracemalloc.stop()


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


async def test_reading_stops_at_the_first_byte_too_many() -> None:
    """What comes after the limit is never asked for: a sender without end cannot fill the memory."""
    receive = Incoming(*chunks(b"x" * 6, b"x" * 6, b"x" * 6))
    with refused("body_too_large"):
        await read(receive, RequestHeaders([]), max_bytes=10, timeout=30)
    assert len(receive.messages) == 1


@pytest.mark.parametrize("length", ["11", "9" * 19, "9" * 5000])
async def test_a_length_declared_too_large_is_refused_unread(length: str) -> None:
    receive = Incoming(*chunks(b"{}"))
    with refused("body_too_large"):
        await read(receive, RequestHeaders([(b"content-length", length.encode())]), max_bytes=10, timeout=30)
    assert receive.messages


@pytest.mark.parametrize("length", ["10", "0", "-11", "x", "1e9", ""])
async def test_a_length_that_fits_or_says_nothing_is_not_trusted(length: str) -> None:
    """What counts is what arrives; framing is the server's business."""
    assert await take(*chunks(b"{}"), head=RequestHeaders([(b"content-length", length.encode())])) == b"{}"


@pytest.mark.parametrize("codings", [["gzip"], ["br"], ["identity, gzip"], ["x"], ["identity", "gzip"]])
async def test_a_compressed_body_is_refused(codings: list[str]) -> None:
    """We would read other bytes than the application, so nobody does; identity in front of a coding hides nothing."""
    with refused("content_encoding"):
        await take(*chunks(b"{}"), head=RequestHeaders([(b"content-encoding", one.encode()) for one in codings]))


@pytest.mark.parametrize("encoding", ["", "identity", " Identity "])
async def test_identity_is_no_encoding(encoding: str) -> None:
    assert await take(*chunks(b"{}"), head=RequestHeaders([(b"content-encoding", encoding.encode())])) == b"{}"


@pytest.mark.parametrize("before", [0, 1, 2])
@pytest.mark.parametrize("slow", [False, True])
async def test_a_client_that_leaves_in_the_middle_is_cut_short(before: int, slow: bool) -> None:
    """Half a message is never taken for a whole one."""
    arrived = chunks(*[b"x"] * 3)[:before]
    with refused("body_cut_short"):
        await take(*arrived, DISCONNECT, slow=slow)


@pytest.mark.parametrize("slow", [False, True])
async def test_a_body_whose_rest_does_not_come_times_out(slow: bool) -> None:
    """Its beginning came with the headers; a client that sends headers alone is the server's matter."""
    with refused("body_timeout"):
        await take(chunks(b"x", b"")[0], slow=slow, timeout=0.001)


async def test_cancelling_the_request_reaches_the_server_s_receive() -> None:
    """A request that is given up while it waits for its first byte leaves nothing waiting behind it."""
    waiting, seen = anyio.Event(), []

    async def receive() -> Message:
        waiting.set()
        try:
            return await Incoming()()
        except BaseException as error:
            seen.append(type(error))
            raise

    async def request() -> None:
        await read(receive, RequestHeaders([]), max_bytes=10, timeout=30)

    async with anyio.create_task_group() as group:
        group.start_soon(request)
        await waiting.wait()
        group.cancel_scope.cancel()
    assert seen == [anyio.get_cancelled_exc_class()]


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

    if timeout == 30:
        assert await read(receive, RequestHeaders([]), max_bytes=10, timeout=timeout) == b"{}"
    else:
        with refused("body_timeout"):
            await read(receive, RequestHeaders([]), max_bytes=10, timeout=timeout)
