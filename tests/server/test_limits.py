"""Every limit: one under and at it pass, one over does not. A body is bounded in bytes and time, and so is memory."""

import gc
import json
import logging
import tracemalloc
from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from functools import partial
from random import Random
from typing import Any

import anyio
import pytest
from apps import Server, sessions
from clients import START, Answer, Client, Clock, Header, Incoming, by, call, chunks, credentials, http, user_of
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from reasons import refused
from recorded import process_wide
from starlette.types import Message, Receive

from mcp_sessions import Session
from mcp_sessions._errors import DataTooLarge, StateTooLarge
from mcp_sessions._protocol.headers import RequestHeaders
from mcp_sessions._protocol.jsonrpc import MAX_BATCH
from mcp_sessions._server.body import read_body
from mcp_sessions.events import RequestRefused, SessionEvent
from mcp_sessions.stores import MemoryStore
from mcp_sessions.telemetry import Inspector, SessionMetrics


async def test_a_budget_is_of_one_caller_and_one_minute(clock: Clock) -> None:
    """Windows are whole minutes; the refusal says when the next one begins, which a clock set back does at once.

    Deleting brings nothing back. However many names come, no more are kept, and those beyond share a budget.
    """
    client = Client(sessions(Server(), create_limit=1, principal=user_of, clock=clock))
    limit = client.app._runtime.create_limit  # type: ignore[attr-defined]
    limit.max_callers = 2

    async def spent(name: str) -> str | None:
        answer = await client.send("sessions/create", None, by(name))
        assert answer.status == (429 if b"retry-after" in answer.headers else 200)
        return answer.headers.get(b"retry-after", b"").decode()

    await client.delete(await client.create(by("alice")))
    for seconds, wait in ((0, "60"), (59.9, "1")):
        clock.now = START + seconds
        assert await spent("alice") == wait
    assert [await spent(name) for name in ("bob", "carol", "dave", "alice", "bob")] == ["", "", "1", "1", "1"]
    assert len(limit.created) == 3
    for now in (START + 60, START - 3600):
        clock.now = now
        assert [await spent("alice") for _ in range(2)] == ["", "60"]


Passes = Callable[[int], Awaitable[bool]]  # whether an input of that size passes
PING = b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"arguments":%b}}'


def within(attempt: Callable[[Client, int], Awaitable[Answer]], **options: Any) -> Passes:
    """Say whether an attempt of that size on a server with these options is answered with a success."""

    async def passes(size: int) -> bool:
        answer = await attempt(Client(sessions(Server(keep=keep), **options), modern=False), size)
        return answer.status < 400 and b'"error"' not in answer.body

    return passes


async def keep(session: Session | None, arguments: dict[str, Any]) -> Any:
    """Keep a value, of 100 bytes unless told otherwise."""
    assert session is not None
    await session.data.set("k", "x" * arguments.get("size", 97))


async def nest(client: Client, size: int) -> Answer:
    levels = size - 3  # the message, its params and their arguments are levels, too
    return await client.post(PING % (b'{"a":%b}' % (b"[" * levels + b"]" * levels)))


async def create(client: Client, size: int) -> Answer:
    return [await client.send("sessions/create") for _ in range(size)][-1]


async def delete(client: Client, size: int) -> Answer:
    return [await client.delete(await client.create()) for _ in range(size)][-1]


async def copy(client: Client, size: int) -> Answer:
    """Let so many sessions hold a value: the first and its copies."""
    await client.tool("keep", session=(root := await client.create()))
    return [await client.send("sessions/fork", session=root) for _ in range(size - 1)][-1]


async def keeps(client: Client, size: int) -> Answer:
    """Keep a value of that size with its key; a handler gets the error."""
    with suppress(DataTooLarge):
        return await client.tool("keep", session=await client.create(), size=size - 3)
    return Answer([{"type": "http.response.start", "status": 500, "headers": []}])


async def revoked(size: int) -> bool:
    return await within(delete, store=MemoryStore(max_entries=5))(size)


async def named(size: int) -> bool:
    """Whether a session id of that length is looked into."""
    heard: list[SessionEvent] = []
    client = Client(sessions(Server(), max_token_bytes=600, listen=heard.append))
    await client.tool(session={"sessionId": "a" * size})
    return [fact.reason for fact in heard if isinstance(fact, RequestRefused)] != ["token_size"]


async def state(size: int, *, modern: bool = True) -> bool:
    """Whether a state of that many bytes is kept, and comes back."""
    client = Client(sessions(Server(), max_state_bytes=100), modern=modern)
    session, header = (await client.create(), []) if modern else (None, [await client.initialize()])
    text = "x" * (size - len('{"text":""}'))
    with suppress(StateTooLarge):  # which a handler gets
        answer = await client.tool("remember", *header, session=session, text=text)
        held = {**(session or {}), **credentials(answer.session or {})} or None
        answer = await client.tool("remember", *header, session=held)
        return bool(answer.result["content"] == {"text": text})
    return False


ALICE: dict[str, Any] = {"principal": lambda scope: "alice"}
LIMITS: dict[str, tuple[Passes, int]] = {
    "max_body_bytes": (within(lambda client, size: client.post((PING % b"{}").ljust(size)), max_body_bytes=300), 300),
    "max_batch": (within(lambda client, size: client.post([{"jsonrpc": "2.0", "method": "a"}] * size)), MAX_BATCH),
    "max_nesting": (within(nest, max_nesting=20), 20),
    "max_token_bytes": (named, 600),
    "max_state_bytes": (state, 100),
    "max_state_bytes, by header": (partial(state, modern=False), 100),
    "max_value_bytes": (within(lambda client, size: keeps(client, size + 1), max_value_bytes=90), 90),
    "max_data_bytes": (within(keeps, max_data_bytes=90), 90),
    "create_limit": (within(create, create_limit=5), 5),
    "sessions_per_principal": (within(create, tracked=True, **{"limits.sessions_per_principal": 5}, **ALICE), 5),
    "anonymous_sessions": (within(create, tracked=True, **{"limits.anonymous_sessions": 5}), 5),
    "data_bytes_per_principal": (within(copy, **{"limits.data_bytes_per_principal": 5 * 300}, **ALICE), 5),
    "anonymous_data_bytes": (within(copy, **{"limits.anonymous_data_bytes": 5 * 300}), 5),
    "MemoryStore(max_entries)": (revoked, 5),
}


@pytest.mark.parametrize("limit", LIMITS)
async def test_a_limit_is_the_largest_size_that_passes(limit: str) -> None:
    passes, size = LIMITS[limit]
    assert [await passes(size - 1), await passes(size), await passes(size + 1)] == [True, True, False]


# --- bodies --------------------------------------------------------------------------------------


async def read(receive: Receive, *headers: Header, max_bytes: int = 10, timeout: float = 30) -> bytes:
    return await read_body(receive, RequestHeaders(headers), max_bytes=max_bytes, timeout=timeout)


@pytest.mark.parametrize("pieces", [[b"0123", b"4567", b"89"], [b"0123", b"", b"4567", b"89a"], [b""], [b"x" * 11]])
async def test_a_body_is_judged_by_its_size_alone(pieces: list[bytes]) -> None:
    """It arrives whole however it was cut; cutting it neither saves nor condemns it."""
    body = b"".join(pieces)
    with nullcontext() if len(body) <= 10 else refused("body_too_large"):
        assert await read(Incoming(*chunks(*pieces))) == body


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
    with anyio.fail_after(5), refused(reason):
        await read(Incoming(*arrived), timeout=timeout)


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


NAMES = (
    *(
        "mcp-session-id",
        "last-event-id",
        "mcp-method",
        "mcp-name",
        "traceparent",
        "tracestate",
        "baggage",
        "cookie",
        "origin",
        "host",
        "user-agent",
        "authorization",
        "x-forwarded-for",
        "sec-fetch-site",
    ),
)
METHODS = ("tools/call", "initialize", "server/discover", "sessions/delete", "sessions/list", "resources/read", "ping")


def hostile(client: Client, random: Random, text: str, forged: str) -> tuple[Any, bytes]:
    """Return a request without a valid session and its body, with a text that no other has wherever one may stand."""
    version = b"mcp-protocol-version", random.choice([b"2026-07-28", b"2025-11-25", text.encode()])
    headers = [(name.encode(), f"{text}{name}".encode()) for name in random.sample(NAMES, 4)]
    headers += [(b"content-type", b"application/json"), (b"x-conversation", text.encode()), version]
    named = random.choice([None, {"sessionId": text}, {"sessionId": forged, "state": text}])
    info = {"name": random.choice(["a", text]), "version": text}
    meta = {"io.modelcontextprotocol/clientInfo": info, "traceparent": text}
    params = {"name": "whoami", "uri": text, "arguments": {"x": text}, "_meta": meta}
    method, verb = random.choice([*METHODS, text]), random.choice(["POST", "POST", "POST", "GET", "DELETE"])
    message = client.message(method, params, id=random.choice([text, 1, None]), session=named)
    return http(verb, headers=headers, client=(text, 1)), json.dumps(message).encode() if verb == "POST" else b""


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # the order of events does not matter here
@pytest.mark.parametrize(
    ("count", "size"), [(200, 200_000), pytest.param(500_000, 20_000_000, marks=pytest.mark.nightly)]
)
async def test_requests_without_a_valid_session_leave_nothing(
    count: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With spans, metrics and the inspector, less than a fifth of 5 kB each; tables fill up, and stay as they are."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.NullHandler()])  # pytest's keep all that they get
    metrics = SessionMetrics(MeterProvider([InMemoryMetricReader()]))
    options: dict[str, Any] = {"bridge": True, "tracked": True, "correlate": ["header:x-conversation"]}
    app = sessions(server := Server(sse=True), inspector=Inspector(), metrics=metrics, **options)
    client, random = Client(app), Random(38)
    forged = (await client.create())["sessionId"][:-6] + "AAAAAA"
    with process_wide().recording() as spans:

        async def send(first: int, last: int) -> None:
            for number in range(first, last):
                await call(app, *hostile(client, random, f"{number}-{'x' * 1000}", forged))
                server.seen.clear()
                spans.clear()
            gc.collect()

        await send(0, 200)
        tracemalloc.start()
        try:
            await send(200, 200 + count)
            assert tracemalloc.get_traced_memory()[0] < size
        finally:
            tracemalloc.stop()


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
