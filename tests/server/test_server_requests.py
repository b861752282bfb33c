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


@pytest.mark.xfail(strict=True, reason="answers of any epoch reach the server")
@pytest.mark.parametrize("answer_id", ["e1:1", 1])
@pytest.mark.parametrize("answer", [ANSWER, {"jsonrpc": "2.0", "error": {"code": -1, "message": "no"}}])
async def test_an_answer_of_another_epoch_is_dropped(answer: dict[str, Any], answer_id: object) -> None:
    """It is accepted all the same: its client has answered what it was asked."""
    client, ours, _ = await asked(server := Asking(QUESTION))
    reply = await post(client, ours, {**answer, "id": answer_id})
    assert (reply.status, reply.body) == (202, b"")
    assert server.seen == []
