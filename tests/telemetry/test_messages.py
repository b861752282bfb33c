"""A message's span says what is asked and how it ended, and nothing in which a client could hide a credential."""

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

import anyio
import pytest
from apps import Server, reply, sessions
from clients import INITIALIZE, Client, call, http
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import StatusCode, get_current_span
from recorded import messages, named, process_wide, said
from starlette.types import Message, Receive, Scope, Send
from streaming import Streaming

from mcp_sessions import Session, current_session

# --- what is asked -----------------------------------------------------------------------------------

URI, PROMPT, ID = "mcp.resource.uri", "gen_ai.prompt.name", "jsonrpc.request.id"


@pytest.mark.parametrize(
    ("method", "params", "expected"),
    [
        ("resources/read", {"uri": "file:///a.pdf"}, {URI: "file:///a.pdf"}),
        ("resources/read", {"uri": "postgres://user:pw@db/cart?sslkey=x#y"}, {URI: "postgres://db/cart"}),
        ("resources/read", {"uri": "?sslkey=x"}, {}),  # what often holds credentials in a URI
        ("prompts/get", {"name": "greet"}, {PROMPT: "greet"}),
        ("prompts/get", {"name": "x" * 200}, {PROMPT: "x" * 128}),
        *(("prompts/get", {"name": name}, {}) for name in ("a\nb", 7, "\ud800")),  # strange, or cannot be written
        ("tools/list", {"name": "x", "uri": "x"}, {}),
    ],
    ids=str,
)
async def test_what_a_message_names_is_on_its_span(
    method: str, params: dict[str, Any], expected: dict[str, str], spans: list[ReadableSpan]
) -> None:
    await Client(sessions(Server())).send(method, params)
    assert said(spans[-1], "mcp.method.name", URI, PROMPT) == [method, expected.get(URI), expected.get(PROMPT)]


@pytest.mark.parametrize(("sent", "kept"), [(7, "7"), ("a-1", "a-1"), ("x" * 65, None), ("a\nb", None), (None, None)])
async def test_a_usual_id_is_on_its_span(sent: object, kept: str | None, spans: list[ReadableSpan]) -> None:
    await Client(sessions(Server())).send("ping", id=sent)
    assert said(spans[-1], ID) == [kept]


async def test_a_session_id_in_the_wrong_place_is_left_out(spans: list[ReadableSpan]) -> None:
    client = Client(sessions(Server()))
    token = (await client.create())["sessionId"]
    for method, params in (("prompts/get", {"name": token}), ("resources/read", {"uri": f"x://{token}"}), (token, {})):
        await client.send(method, params)
    ping = json.dumps({"jsonrpc": "2.0", "id": token, "method": "ping"})
    await call(client.app, http(headers=[(b"mcp-protocol-version", token.encode())]), ping.encode())
    assert len(spans) == 6
    assert not any(token.rsplit(".", 1)[1][:16] in span.to_json() for span in spans)


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
CODE, TYPE = "rpc.response.status_code", "error.type"
FAILED = {CODE: "-32602"}  # by its client's mistake
ANSWER = b'{"jsonrpc":"2.0","id":1,%b}'

ANSWERS: dict[bytes, dict[str, str]] = {
    ANSWER % b'"result":{"content":[],"isError":false}': {},
    ANSWER % b'"result":{"content":[],"isError":true}': {TYPE: "tool_error"},
    ANSWER % b'"result":{"content":[{"text":"\\"isError\\":true, \\"error\\""}]}': {},
    ERROR: FAILED,
    **{ANSWER % (b'"error":{"code":%d}' % code): {CODE: str(code)} for code in (-32700, -32600, -32601, -32002)},
    **{ANSWER % (b'"error":{"code":%d}' % code): {CODE: str(code), TYPE: str(code)} for code in (-32603, 42)},
    ANSWER % b'"error":{"code":"odd"}': {},
    b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"error":1}}': {},
    b'{"error"': {},
}


def response(media_type: bytes, *parts: bytes, status: int = 200) -> list[Message]:
    """A response in so many parts, and what an application sends after it."""
    *before, last = parts
    start = {"type": "http.response.start", "status": status, "headers": [(b"Content-Type", media_type)]}
    whole = [{"type": "http.response.body", "body": part, "more_body": True} for part in before]
    return [start, *whole, {"type": "http.response.body", "body": last}, {"type": "http.response.trailers"}]


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
    assert (span.status.status_code is StatusCode.ERROR) == (TYPE in (span.attributes or {}))
    assert span.status.description is None
    names = TYPE, CODE, "http.response.status_code", "mcp_sessions.reason"
    return {name: value for name, value in (span.attributes or {}).items() if name in names}


@pytest.mark.parametrize("size", [1 << 10, 7], ids=["whole", "in pieces"])
@pytest.mark.parametrize("text", ANSWERS, ids=bytes.decode)
async def test_an_answer_has_its_outcome(text: bytes, size: int) -> None:
    """An error is its code, a tool's own failure `tool_error`; notifications on a stream have none."""
    stream = b": hello\n\ndata: " + text + b'\n\ndata: {"method":"later"}\n\n'
    for media_type, body in ((JSON, text), (EVENTS, stream)):
        parts = [body[start : start + size] for start in range(0, len(body), size)]
        assert await outcome(response(media_type, *parts)) == ANSWERS[text]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (response(TEXT, ERROR, status=502), {TYPE: "502", "http.response.status_code": 502}),
        (response(JSON, b'{"error":"invalid_token"}', status=401), {"http.response.status_code": 401}),
        ([{"type": "http.response.start", "status": 202}, {"type": "http.response.body"}], {}),
        ([{"type": "http.response.debug"}, *response(JSON, ERROR)], FAILED),
        # an error has no megabyte, so nothing of it is held either
        (response(JSON, b"{" + LONG, ERROR[1:], b""), {}),
        (response(EVENTS, b"data: {" + LONG, ERROR[1:] + b"\n\n", b""), {}),
    ],
    ids=["a proxy's page", "a guard's", "no body", "another ASGI message", "too long", "too long an event"],
)
async def test_without_an_answer_that_can_be_read_the_status_decides(
    answer: list[Message], expected: dict[str, Any]
) -> None:
    assert await outcome(answer) == expected


async def test_a_fault_of_the_application_is_its_class_and_one_of_its_state_what_the_client_is_sent(
    spans: list[ReadableSpan],
) -> None:
    async def fails(session: Session | None, arguments: dict[str, Any]) -> Any:
        raise LookupError("a secret")

    async def grow(session: Session | None, arguments: dict[str, Any]) -> Any:
        assert session is not None
        session.state["list"] = []
        session.state["list"].append("x" * 10_000)

    client = Client(sessions(Server(fails=fails, grow=grow)))
    with pytest.raises(LookupError):
        await client.tool("fails")
    assert (await client.tool("grow", session=await client.create())).error["code"] == -32603
    assert [said(span, "error.type") for span in messages(spans, "tools/call")] == [["LookupError"], ["-32603"]]
    assert "a secret" not in spans[0].to_json()


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
