"""A message's span says what is asked and how it ended, and nothing in which a client could hide a credential."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import anyio
import pytest
from apps import Server, reply, sessions
from clients import INITIALIZE, Client, call, http
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import StatusCode, get_current_span
from recorded import ALIAS, messages, named, process_wide, said
from starlette.types import Message, Receive, Scope, Send
from streaming import Streaming

from mcp_sessions import Session, current_session
from mcp_sessions.telemetry import SessionSpanProcessor

# --- what is asked -----------------------------------------------------------------------------------

NAMES = {
    "mcp.method.name": "method",
    "mcp.protocol.version": "version",
    "jsonrpc.request.id": "id",
    "gen_ai.tool.name": "tool",
    "gen_ai.operation.name": "operation",
    "gen_ai.prompt.name": "prompt",
    "mcp.resource.uri": "uri",
}
CALL = {"method": "tools/call", "operation": "execute_tool"}


async def described(spans: list[ReadableSpan], method: str, *, version: str | None = None, **message: Any) -> Any:
    """The attributes of the span of a message by short names, and that it names its transport."""
    app, versioned = sessions(Server()), [] if version is None else [(b"mcp-protocol-version", version.encode())]
    body = json.dumps({"jsonrpc": "2.0", "method": method, **message}).encode()
    await call(app, http(headers=[(b"content-type", b"application/json"), *versioned]), body)
    found = dict(spans[-1].attributes or {})
    assert found.items() >= {"network.transport": "tcp", "network.protocol.name": "http"}.items()
    return {NAMES[name]: value for name, value in found.items() if name in NAMES}


@pytest.mark.parametrize(
    ("method", "message", "expected"),
    [
        ("tools/call", {"id": 7, "params": {"name": "count"}}, {**CALL, "id": "7", "tool": "count"}),
        ("prompts/get", {"id": "a-1", "params": {"name": "greet"}}, {"id": "a-1", "prompt": "greet"}),
        ("resources/read", {"id": 1, "params": {"uri": "file:///a.pdf"}}, {"id": "1", "uri": "file:///a.pdf"}),
        ("notifications/initialized", {}, {}),
        ("tools/list", {"id": 1, "params": {"name": "x"}}, {"id": "1"}),
        # what often holds credentials in a URI
        *(
            ("resources/read", {"id": 1, "params": {"uri": uri}}, {"id": "1", **kept})
            for uri, kept in {
                "postgres://user:pw@db/cart?sslkey=x#y": {"uri": "postgres://db/cart"},
                "?sslkey=x": {},
            }.items()
        ),
        # names that are strange, too long or cannot be written
        *(
            ("prompts/get", {"id": 1, "params": {"name": name}}, {"id": "1", **kept})
            for name, kept in (("a\nb", {}), (7, {}), ("x" * 200, {"prompt": "x" * 128}), ("\ud800", {}))
        ),
        *(("ping", {"id": strange}, {}) for strange in ("x" * 65, "a\nb")),
        *(("ping", {"id": 1, "version": version}, {"id": "1"}) for version in ("1999-01-01", "2026-07-28, x")),
    ],
    ids=str,
)
async def test_a_message_is_named(
    method: str, message: dict[str, Any], expected: dict[str, str], spans: list[ReadableSpan]
) -> None:
    assert await described(spans, method, **message) == {"method": method, **expected}


async def test_a_session_id_in_the_wrong_place_is_left_out(spans: list[ReadableSpan]) -> None:
    token = (await Client(sessions(Server())).create())["sessionId"]
    await described(spans, "prompts/get", id=1, params={"name": token})
    await described(spans, "resources/read", id=1, params={"uri": f"x://{token}"})
    await described(spans, "ping", id=token, version=token)
    await described(spans, token, id=1)
    assert not any(token.rsplit(".", 1)[1][:16] in span.to_json() for span in spans)


async def test_its_session_is_there_by_every_name(spans: list[ReadableSpan]) -> None:
    """Its own two, and the aliases that the processor was given; also of a list, though its handler sees none."""
    SessionSpanProcessor(aliases=[ALIAS])
    client = Client(sessions(Server()))
    held = await client.create()
    ref = (await client.tool(session=held)).result["content"]
    await client.send("tools/list", session=held)
    for name in ("tools/call whoami", "tools/list", "sessions/create", "session start"):
        assert said(named(spans, name), "session.id", "mcp.session.id", ALIAS) == [ref] * 3, name


async def test_the_first_message_of_a_connection_is_not_a_context_for_later_ones(spans: list[ReadableSpan]) -> None:
    """Servers start the task that serves all later requests in it, and that would keep its span and its session."""
    seen: list[Any] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append((scope["mcp_session"], current_session(), get_current_span().get_span_context().is_valid))
        await reply(send, b'{"jsonrpc":"2.0","id":1,"result":{}}')

    client = Client(sessions(app, transport="off", admission="own"), modern=False)
    await client.send("initialize", INITIALIZE, session=await client.create())
    await client.tool(session=await client.create())
    assert isinstance(seen[0][0], Session)
    assert seen[0][1:] == (None, False)
    assert seen[1][0] is seen[1][1]
    assert seen[1][2]
    assert said(named(spans, "initialize"), "session.id") == [seen[0][0].ref]


# --- how it ended ------------------------------------------------------------------------------------

JSON, EVENTS, TEXT = b"Application/JSON; charset=utf-8", b"text/event-stream", b"text/plain"
ERROR = b'{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"no basket 7"}}'
LONG = b" " * (1 << 20)
FAILED = {"rpc.response.status_code": "-32602"}  # by its client's mistake
TOOL_ERROR = {"error.type": "tool_error"}

ANSWERS: dict[bytes, dict[str, str]] = {
    b'{"jsonrpc":"2.0","id":1,"result":{}}': {},
    b'{"jsonrpc":"2.0","id":1,"result":{"content":[],"isError":false}}': {},
    b'{"jsonrpc":"2.0","id":1,"result":{"content":[],"isError":true}}': TOOL_ERROR,
    b'{"jsonrpc":"2.0","id":1,"result":{"content":[{"text":"\\"isError\\":true, \\"error\\""}]}}': {},
    ERROR: FAILED,
    **{
        b'{"jsonrpc":"2.0","id":1,"error":{"code":%d}}' % code: {"rpc.response.status_code": str(code)}
        for code in (-32700, -32600, -32601, -32002)
    },
    **{
        b'{"jsonrpc":"2.0","id":1,"error":{"code":%d}}' % code: {
            "error.type": str(code),
            "rpc.response.status_code": str(code),
        }
        for code in (-32603, -32043, 42)
    },
    b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"error":1}}': {},
    b'{"jsonrpc":"2.0","id":1,"error":{"code":"odd"}}': {},
    b'{"error"': {},
}


def response(media_type: bytes, *parts: bytes, status: int = 200) -> list[Message]:
    """A response in so many parts, and an empty last one."""
    start = {"type": "http.response.start", "status": status, "headers": [(b"Content-Type", media_type)]}
    last = {"type": "http.response.body", "body": b""}
    return [start, *({"type": "http.response.body", "body": part, "more_body": True} for part in parts), last]


def in_one_part(media_type: bytes, body: bytes) -> list[Message]:
    start, part, _ = response(media_type, body)
    return [start, {"type": part["type"], "body": body}, {"type": "http.response.trailers", "headers": []}]


def in_pieces(media_type: bytes, body: bytes) -> list[Message]:
    return response(media_type, *(body[start : start + 7] for start in range(0, len(body), 7)))


async def outcome(messages: Sequence[Message]) -> dict[str, Any]:
    """The error on the span of a call that an application answers so; its messages must pass as the same objects."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for message in messages:
            await send(message)

    with process_wide().recording() as spans:
        answer = await call(sessions(app), http(), b'{"jsonrpc":"2.0","id":1,"method":"ping"}')
    assert all(one is other for one, other in zip(answer.messages, messages, strict=True))
    (span,) = [span for span in spans if span.name == "ping"]
    assert "basket" not in span.to_json()  # the server's own text of an error
    assert (span.status.status_code is StatusCode.ERROR) == ("error.type" in (span.attributes or {}))
    assert span.status.description is None
    names = "error.type", "rpc.response.status_code", "http.response.status_code", "mcp_sessions.reason"
    return {name: value for name, value in (span.attributes or {}).items() if name in names}


@pytest.mark.parametrize("sent", [in_one_part, in_pieces])
@pytest.mark.parametrize("text", ANSWERS, ids=bytes.decode)
async def test_an_answer_has_its_outcome(text: bytes, sent: Callable[[bytes, bytes], list[Message]]) -> None:
    """An error is its code, a tool's own failure `tool_error`; notifications on a stream have none."""
    assert await outcome(sent(JSON, text)) == ANSWERS[text]
    stream = b": hello\n\ndata: " + text + b'\n\ndata: {"method":"later"}\n\n'
    assert await outcome(sent(EVENTS, stream)) == ANSWERS[text]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (response(TEXT, ERROR, status=502), {"error.type": "502", "http.response.status_code": 502}),
        (response(JSON, b'{"error":"invalid_token"}', status=401), {"http.response.status_code": 401}),
        ([{"type": "http.response.start", "status": 202}, {"type": "http.response.body"}], {}),
        ([{"type": "http.response.debug"}, *response(JSON, ERROR)], FAILED),
        # an error has no megabyte, so nothing of it is held either
        (response(JSON, b"{" + LONG, ERROR[1:]), {}),
        (response(EVENTS, b"data: {" + LONG, ERROR[1:] + b"\n\n"), {}),
    ],
    ids=["a proxy's page", "a guard's", "no body", "another ASGI message", "too long", "too long an event"],
)
async def test_without_an_answer_that_can_be_read_the_status_decides(
    answer: list[Message], expected: dict[str, Any]
) -> None:
    assert await outcome(answer) == expected


async def test_of_what_an_application_raises_the_class_alone_is_written(spans: list[ReadableSpan]) -> None:
    async def fails(session: Session | None, arguments: dict[str, Any]) -> Any:
        raise LookupError("a secret")

    with pytest.raises(LookupError):
        await Client(sessions(Server(fails=fails))).tool("fails")
    assert said(spans[-1], "error.type") == ["LookupError"]
    assert "a secret" not in spans[-1].to_json()


async def test_a_state_that_cannot_be_kept_is_an_error_of_the_call(spans: list[ReadableSpan]) -> None:
    """The span has the error that the client was sent, and not the server's answer."""

    async def grow(session: Session | None, arguments: dict[str, Any]) -> Any:
        assert session is not None
        session.state["list"] = []
        session.state["list"].append("x" * 10_000)

    client = Client(sessions(Server(grow=grow)))
    assert (await client.tool("grow", session=await client.create())).error["code"] == -32603
    assert said(messages(spans, "tools/call")[0], "error.type") == ["-32603"]


async def test_a_refusal_has_a_span_with_its_reason(spans: list[ReadableSpan]) -> None:
    """Which the client does not get; where the server's own guard answers, it is the guard's status."""
    client = Client(sessions(Server(), require="always"))
    await client.tool()
    (refused,) = messages(spans, "tools/call")
    assert said(refused, "error.type", "mcp_sessions.reason") == ["-31044", "required"]
    assert refused.status.description == "Session required"

    async def guard(scope: Scope, send: Send) -> bool:
        await reply(send, b"{}", status=401)
        return True

    await Client(sessions(Server(guard=guard))).send("sessions/create")
    (guarded,) = messages(spans, "sessions/create")
    assert said(guarded, "error.type", "http.response.status_code") == [None, 401]


async def test_a_stream_that_is_cut_has_the_reason_that_its_session_ended(spans: list[ReadableSpan]) -> None:
    server = Streaming()
    client = Client(sessions(server))
    session = await client.create()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(client.tool, session=session))
        await server.began.wait()
        await client.delete(session)
        server.go.set()
    assert said(messages(spans, "tools/call")[0], "mcp_sessions.reason") == ["ended"]
    assert said(named(spans, "sessions/delete"), "mcp_sessions.reason", "error.type") == [None, None]
