"""Requests that the wrapped server sends its clients across the bridge: an answer counts for its own question alone."""

import json
from typing import Any

import pytest
from apps import read, reply, sessions
from clients import Answer, Client, Header, call, http
from starlette.types import Receive, Scope, Send

QUESTION = {"jsonrpc": "2.0", "id": 1, "method": "elicitation/create", "params": {"_meta": {"progressToken": 1}}}
ANSWER = {"jsonrpc": "2.0", "result": {"action": "accept"}}


class Asking:
    """A stateful server that answers each call and each GET with messages of its own, and keeps what it is sent."""

    def __init__(self, *messages: Any, media_type: bytes = b"text/event-stream") -> None:
        self.messages, self.media_type = messages, media_type
        self.seen: list[Any] = []
        self.headers: list[Header] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        message = json.loads(await read(receive) or b"{}")
        if message.get("method") == "initialize":
            answer = {"jsonrpc": "2.0", "id": message["id"], "result": {"capabilities": {}}}
            await reply(send, json.dumps(answer).encode(), named=b"servers-1")
        elif scope["method"] == "GET" or message.get("method") == "tools/call":
            self.headers = list(scope["headers"])
            texts = [json.dumps(one) for one in self.messages]
            body = "".join(f"data: {text}\n\n" for text in texts) if b"event" in self.media_type else texts[0]
            await reply(send, body.encode(), media_type=self.media_type, named=b"servers-1")
        else:
            self.seen.append(message)
            await reply(send, b"", status=202, named=b"servers-1")


async def connected(server: Asking) -> tuple[Client, Header]:
    client = Client(sessions(server, bridge=True), modern=False)
    return client, await client.initialize()


async def asked(server: Asking, *, listen: bool = False) -> tuple[Client, Header, Answer]:
    """Return what a client gets of a server that asks, on the stream of a call or of a GET."""
    client, ours = await connected(server)
    if listen:
        return client, ours, await call(client.app, http("GET", headers=[ours]))
    return client, ours, await client.send("tools/call", None, ours)


async def post(client: Client, ours: Header, message: object) -> Answer:
    headers = [(b"content-type", b"application/json"), ours]
    return await call(client.app, http(headers=headers), json.dumps(message).encode())


@pytest.mark.parametrize("server_id", [1, "1", 'a"b', -7])
@pytest.mark.parametrize("media_type", [b"text/event-stream", b"application/json"])
async def test_questions_leave_with_their_epoch(server_id: object, media_type: bytes) -> None:
    server = Asking({**QUESTION, "id": server_id}, media_type=media_type)
    client, ours, answer = await asked(server)
    assert answer.json["id"] == f"e0:{json.dumps(server_id)}"
    assert (await post(client, ours, {**ANSWER, "id": answer.json["id"]})).status == 202
    assert server.seen == [{**ANSWER, "id": server_id}]


async def test_questions_of_a_get_stream_leave_with_it() -> None:
    client, ours, answer = await asked(server := Asking(QUESTION), listen=True)
    assert answer.json["id"] == "e0:1"
    await post(client, ours, {**ANSWER, "id": "e0:1"})
    assert server.seen == [{**ANSWER, "id": 1}]


@pytest.mark.parametrize("answer_id", ["e1:1", "e10:1", 1, "1", "e0:", "e00:1", "E0:1", "e0:1 2"])
@pytest.mark.parametrize("answer", [ANSWER, {"jsonrpc": "2.0", "error": {"code": -1, "message": "no"}}])
async def test_an_answer_of_another_epoch_is_dropped(answer: dict[str, Any], answer_id: object) -> None:
    """It is accepted all the same: its client has answered what it was asked."""
    client, ours, _ = await asked(server := Asking(QUESTION))
    reply = await post(client, ours, {**answer, "id": answer_id})
    assert (reply.status, reply.body) == (202, b"")
    assert server.seen == []


async def test_messages_in_an_array_are_marked_singly() -> None:
    note = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"requestId": 1}}
    _, _, answer = await asked(Asking([QUESTION, note]))
    assert [one.get("id") for one in answer.json] == ["e0:1", None]
    assert answer.json[1] == note


async def test_cancelling_a_question_names_its_marked_id() -> None:
    cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
    _, _, answer = await asked(Asking(QUESTION, cancelled))
    assert answer.events[1]["params"] == {"requestId": "e0:1"}


@pytest.mark.parametrize(
    ("method", "param"), [("notifications/progress", "progressToken"), ("notifications/cancelled", "requestId")]
)
@pytest.mark.parametrize(
    ("sent", "received"),
    [("e0:1", [1]), ("e1:1", []), (1, [1]), ("mine", ["mine"]), ("e0:x", ["e0:x"]), (None, [None])],
)
async def test_notifications_about_questions_name_the_servers_id(
    method: str, param: str, sent: object, received: list[object]
) -> None:
    """What is not marked belongs to a request of the client."""
    client, ours, answer = await asked(server := Asking(QUESTION))
    assert answer.json["params"]["_meta"]["progressToken"] == "e0:1"
    await post(client, ours, {"jsonrpc": "2.0", "method": method, "params": {param: sent}})
    assert [one["params"][param] for one in server.seen] == received


@pytest.mark.parametrize(
    "text",
    [b'{"jsonrpc":"2.0","id":1,"result":{"method":"x"}}', b"not JSON, nor a \\method", b"[1, 2]", b'{"method":1}'],
)
async def test_other_messages_keep_their_bytes(text: bytes) -> None:
    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        await reply(send, b"data: " + text + b"\n\n", media_type=b"text/event-stream", named=b"servers-1")

    client, ours = await connected(Asking())
    client.app.app = app  # type: ignore[attr-defined]
    assert (await call(client.app, http("GET", headers=[ours]))).body == b"data: " + text + b"\n\n"


async def test_a_question_in_two_parts_is_marked() -> None:
    text = b"data: " + json.dumps({**QUESTION, "params": {"_meta": 5}}).encode() + b"\n\n"

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        await send({"type": "http.response.body", "body": text[:20], "more_body": True})
        await send({"type": "http.response.body", "body": text[20:]})

    client, ours = await connected(Asking())
    client.app.app = app  # type: ignore[attr-defined]
    assert (await call(client.app, http("GET", headers=[ours]))).json["id"] == "e0:1"


async def test_an_answer_to_no_question_reaches_the_server() -> None:
    """A client cannot know what it answers if it could not read the question."""
    client, ours, _ = await asked(server := Asking(QUESTION))
    error = {"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "Parse error"}}
    await post(client, ours, error)
    assert server.seen == [error]


async def test_servers_send_questions_uncompressed() -> None:
    client, ours = await connected(server := Asking(QUESTION))
    await call(client.app, http("GET", headers=[ours, (b"accept-encoding", b"gzip")]))
    assert b"accept-encoding" not in dict(server.headers)
