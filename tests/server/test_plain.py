"""The answer of most requests in sessions, which goes a shorter way: what leaves is what the longer way lets out.

One word of a middleware, `is_plain`, switches the shorter way off; both then serve the same request.
"""

from __future__ import annotations

import asyncio
import re
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from apps import read, reply, sessions
from clients import Answer, Client, Clock, Header, Incoming, chunks, http
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import force_setattr
from starlette.types import Message, Receive, Scope, Send

from mcp_sessions import MCPSessionMiddleware, Session
from mcp_sessions._errors import StoreUnavailable
from mcp_sessions._protocol import _native
from mcp_sessions._server.plain import json_headers
from mcp_sessions._server.response import OBSERVED

JSON, LENGTH = (b"content-type", b"application/json"), (b"content-length", b"9")
SUCCESS = b'{"jsonrpc":"2.0","id":1,"result":{"content":[]}}'
BODIES = [
    SUCCESS,
    b'{"jsonrpc": "2.0", "id": 1, "result": {"content": [], "_meta": {"a": 1}}}',
    b'{"id":1,"result":{"ttlMs":5,"cacheScope":"public"},"jsonrpc":"2.0"}',
    b'{"jsonrpc":"2.0","id":2,"result":{}}',
    b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"no"}}',
    b'{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":1,"message":"no"}}',
    *(b"", b"not JSON", b"data: %b\n\n" % SUCCESS, b"id: 4\ndata: %b\n\n" % SUCCESS),
]
HEADERS: list[list[Header]] = [
    *([JSON, LENGTH], [JSON], [(b"Content-Type", b"application/json"), LENGTH], [LENGTH]),
    *([JSON, (b"etag", b"x"), (b"x-y", b"z")], [JSON, (b"ETag", b"x")], [(b"content-type", b"application/json; a=b")]),
    *([JSON, (b"content-encoding", b"gzip")], [JSON, JSON], [JSON, (b"content-type", b"text/html")]),
    *([(b"content-type", b"text/event-stream")], [(b"content-type", b"text/plain")], []),
]
STATES: dict[str, Callable[[Session], object]] = {
    "unused": lambda _session: None,
    "read": lambda session: session.state.get("a"),
    "written": lambda session: session.state.update(a=1),
    "without a JSON form": lambda session: session.state.setdefault("b", []).append(object()),
}


@dataclass
class Plan:
    """What the application does with one request."""

    headers: list[Header] | None = field(default_factory=lambda: [JSON, LENGTH])
    bodies: list[bytes] = field(default_factory=lambda: [SUCCESS])
    status: int = 200
    state: str = "unused"
    ends: bool = False  # its own session
    waits: float = 0.0  # seconds between the start of its answer and the rest
    revokes: bool = False  # the session is ended elsewhere meanwhile
    fails: int = 9  # before which part of its answer
    error: type[BaseException] = StoreUnavailable
    goes_on: bool = False  # to send parts when it has sent everything


def plans() -> st.SearchStrategy[Plan]:
    return st.builds(
        Plan,
        headers=st.sampled_from([*HEADERS, None]),
        bodies=st.lists(st.sampled_from(BODIES), min_size=1, max_size=3),
        status=st.sampled_from([200, 200, 202, 500]),
        state=st.sampled_from(sorted(STATES)),
        ends=st.booleans(),
        waits=st.sampled_from([0.0, 0.5, 5.0]),
        revokes=st.booleans(),
        fails=st.sampled_from([9, 9, 9, 0, 1, 2]),
        error=st.sampled_from([StoreUnavailable, ZeroDivisionError, asyncio.CancelledError]),
        goes_on=st.booleans(),
    )


class World:
    """One middleware, and an application that follows a plan."""

    def __init__(self, plan: Plan, *, plain: bool, **options: Any) -> None:
        self.plan, self.clock = plan, Clock()
        self.app: MCPSessionMiddleware = sessions(self.serve, clock=self.clock, **options)
        self.session: Session | None = None
        self.reached: list[object] = []  # what the application saw of the request
        force_setattr(self.app._options, "is_plain", plain)

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        plan, body = self.plan, await read(receive)
        self.session = session = scope["mcp_session"]
        self.reached = [scope["headers"], scope["state"]["mcp_session"] is session, len(body)]
        if session is None:  # it is asked whether it would serve the caller
            await reply(send, b'{"jsonrpc":"2.0","id":1,"result":{}}')
            return
        STATES[plan.state](session)
        start: Message = {"type": "http.response.start", "status": plan.status}
        parts: list[Message] = [start if plan.headers is None else {**start, "headers": plan.headers}]
        last = len(plan.bodies) - 1
        for place, piece in enumerate(plan.bodies):
            parts.append({"type": "http.response.body", "body": piece, "more_body": place < last})
        if plan.goes_on:
            parts += [parts[-1], {"type": "http.response.trailers", "headers": []}]
        for place, part in enumerate(parts):
            if place == plan.fails:
                raise plan.error("here")
            await send(part)
            self.clock.now += plan.waits
            if plan.ends:
                await session.end()
            elif plan.revokes:
                claims = session._active.claims
                ends_at, audience = claims.expires_at, claims.audience
                await self.app._options.store.revoke(
                    claims.ref, audience=audience, expires_at=ends_at, reason="deleted", lease=60
                )

    async def visit(self, scope: dict[str, Any]) -> list[object]:
        """Serve two requests in a session, and return what came of them: of the second, its session is known."""
        client = Client(self.app)
        session = await client.create()
        return [await self._visit(client, session, dict(scope)) for _ in range(2)]

    async def _visit(self, client: Client, session: dict[str, str], scope: dict[str, Any]) -> list[object]:
        answer = Answer()
        request = http(headers=[(b"accept-encoding", b"gzip"), *client.headers("tools/call")])
        del request["extensions"]
        text = re.sub(rb'"SESSION"', b'"' + session["sessionId"].encode() + b'"', BODY)
        failed = ""
        try:
            await self.app({**request, **scope}, Incoming(*chunks(text)), answer)
        except (StoreUnavailable, ZeroDivisionError, asyncio.CancelledError) as error:
            failed = type(error).__name__
        sent = [{**part, "body": self.mask(part.get("body", b""), session["sessionId"])} for part in answer.messages]
        for part in sent:  # neither of which says more
            if part["type"] == "http.response.body":
                part.setdefault("more_body", False)
            if "headers" in part:
                part["headers"] = [tuple(header) for header in part["headers"] if header[0] != b"content-length"]
        assert answer.messages == [] or answer.start is answer.messages[0]
        streams, events = self.app._options.streams, self.app._options.events
        return [sent, failed, self.reached, self.is_writable, len(streams._open), len(events._calls), events._places]

    @property
    def is_writable(self) -> bool:
        """Whether the state can still be changed, which would reach nobody."""
        if self.session is None or self.plan.state == "without a JSON form":
            return False
        late: list[object] = []
        with suppress(Exception):  # each kind of refusal
            late.append(self.session.state.update(late=True))
        return late != []

    @staticmethod
    def mask(body: bytes, session_id: str) -> bytes:
        return re.sub(rb'"state":"[^"]*"', b'"state":"..."', body.replace(session_id.encode(), b"..."))


BODY = (
    b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","arguments":{},"_meta":{'
    b'"io.modelcontextprotocol/session":{"sessionId":"SESSION"}}}}'
)


def visited(plan: Plan, plain: bool, scope: dict[str, Any], **options: Any) -> list[Any]:
    return asyncio.run(World(plan, plain=plain, **options).visit(scope))


@settings(max_examples=300, deadline=None)
@example(Plan(), {}, None)
@example(Plan(headers=HEADERS[-3], bodies=BODIES[-2:]), {"extensions": {"http.response.pathsend": {}}}, None)
@example(Plan(fails=0), {"state": {}}, None)
@example(Plan(fails=1, error=asyncio.CancelledError), {}, None)
@example(Plan(fails=2, goes_on=True), {"state": {}}, None)
@example(Plan(state="written"), {}, None)
@example(Plan(waits=5.0, revokes=True), {}, 3600)
@example(Plan(state="without a JSON form"), {}, None)
@given(
    plans(),
    st.sampled_from([{}, {"state": {"a": 1}}, {"extensions": {"http.response.pathsend": {}}}, {"extensions": {}}]),
    st.sampled_from([None, 3600]),
)
def test_both_ways_let_out_the_same(plan: Plan, scope: dict[str, Any], idle_timeout: int | None) -> None:
    """Whatever the application does, and whenever it fails."""
    ways = [visited(plan, plain, scope, idle_timeout=idle_timeout) for plain in (True, False)]
    assert ways[0] == ways[1]


LONG = b'{"jsonrpc":"2.0","id":1,"result":{"content":["%b"]}}' % (b"x" * OBSERVED)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize(
    ("body", "is_common"),
    [
        (LONG, True),
        (LONG.replace(b"]}}", b'],"_meta":{"a":1}}}'), True),
        (LONG.replace(b'"content"', b'"ttlMs":5,"content"'), False),
        (LONG.replace(b'"result"', b'"error"'), False),
        (LONG[:-1], False),
    ],
)
def test_a_long_answer_leaves_in_pieces(body: bytes, is_common: bool, state: str) -> None:
    """Where the session is only added to it. What arrives is the same."""
    plan = Plan(bodies=[body], state=state)
    short, long = (visited(plan, plain, {}) for plain in (True, False))
    for here, there in zip(short, long, strict=True):
        pieces = [part.pop("body") for part in here[0] if "body" in part]
        assert b"".join(pieces) == b"".join(part.pop("body") for part in there[0] if "body" in part)
        is_short = is_common and state != "without a JSON form"
        assert (max(map(len, pieces)) <= 256 * 1024) == (is_short or len(b"".join(pieces)) < OBSERVED)
        assert here[1:] == there[1:]


def test_a_long_answer_is_not_copied() -> None:
    """Beside it there is one piece at a time, and they have the length that is announced."""
    app, most, left = World(Plan(bodies=[LONG]), plain=True).app, 0, 0

    async def sent(message: Message) -> None:
        nonlocal most, left
        most = max(most, tracemalloc.get_traced_memory()[1])
        left -= len(message.get("body", b""))
        left += int(dict(message.get("headers", ())).get(b"content-length", 0))

    async def visit() -> None:
        client = Client(app)
        session = await client.create()
        text = BODY.replace(b"SESSION", session["sessionId"].encode())
        request = http(headers=client.headers("tools/call"))
        tracemalloc.start()
        try:
            await app(request, Incoming(*chunks(text)), sent)
        finally:
            tracemalloc.stop()

    asyncio.run(visit())
    assert 0 < most < len(LONG)
    assert left == 0


@pytest.mark.parametrize("read_headers", [_native.kept or json_headers, json_headers], ids=["as built", "in Python"])
@pytest.mark.parametrize(
    ("headers", "kept"),
    [
        ([JSON, LENGTH, (b"vary", b"x")], [JSON, (b"vary", b"x")]),
        ([JSON, (b"etag", b"x"), (b"digest", b"x")], [JSON]),
        *((given, None) for given in ([], None, (JSON,), [LENGTH], [JSON, (b"ETag", b"x")], [JSON, (b"Digest", b"x")])),
        *(([JSON, given], None) for given in ((b"content-encoding", b"identity"), (b"content-type", b"text/plain"))),
        *(([given, JSON], None) for given in ((b"Content-Type", b"a/b"), (b"content-type", b"application/json;a=b"))),
    ],
)
def test_headers_that_stay_true_of_a_changed_body(
    headers: object, kept: object, read_headers: Callable[[object], object]
) -> None:
    """Where that is not certain, the answer goes the longer way."""
    assert read_headers(headers) == kept
