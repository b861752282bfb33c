"""The application gets coroutine functions: it may send and receive in tasks, as any ASGI application may."""

from __future__ import annotations

import asyncio
import inspect
import json
from typing import Any

import anyio
import pytest
from apps import Server, sessions
from clients import Answer, Client, http
from sniffio import current_async_library
from starlette.types import Message, Receive, Scope, Send

SUCCESS = b'{"jsonrpc":"2.0","id":1,"result":{}}'
BODIES = {
    "application/json": SUCCESS,
    "text/event-stream": b"data: %b\n\n" % SUCCESS,
    "text/plain": b"hello",
}


async def in_asyncio_task(function: Any, *event: Message) -> Any:
    """Asyncio's own function takes nothing but a coroutine."""
    return await asyncio.create_task(function(*event))


async def spawn(function: Any, *event: Message) -> Any:
    """Trio's and asyncio's task groups call a coroutine function themselves."""
    async with anyio.create_task_group() as group:
        group.start_soon(function, *event)


class InTasks:
    """An application that sends each event from a task of its own."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert inspect.iscoroutinefunction(receive)
        assert inspect.iscoroutinefunction(send)
        is_asyncio = current_async_library() == "asyncio"
        if is_asyncio:
            assert (await in_asyncio_task(receive))["type"] == "http.request"
        else:
            await spawn(receive)
        way = in_asyncio_task if is_asyncio else spawn
        headers = [(b"content-type", self.kind.encode())]
        await way(send, {"type": "http.response.start", "status": 200, "headers": headers})
        await spawn(send, {"type": "http.response.body", "body": BODIES[self.kind]})


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("is_in_session", [False, True])
@pytest.mark.parametrize("kind", BODIES)
def test_an_application_sends_in_tasks_whatever_it_answers(kind: str, is_in_session: bool, backend: str) -> None:
    """On both event loops, in each kind of response, with and without a session."""
    answer = anyio.run(answered, kind, is_in_session, backend=backend)
    assert answer.status == 200
    assert answer.body.startswith(BODIES[kind][:20])
    assert (answer.body != BODIES[kind]) == (is_in_session and kind != "text/plain")


async def answered(kind: str, is_in_session: bool) -> Answer:
    app, answer = sessions(InTasks(kind)), Answer()
    client = Client(app)
    session = await Client(sessions(Server())).create() if is_in_session else None
    body = json.dumps(client.message("tools/call", {"name": "whoami"}, session=session)).encode()

    async def receive() -> Message:
        return {"type": "http.request", "body": body}

    async def send(event: Message) -> None:
        await answer(event)

    await app(http(headers=client.headers("tools/call")), receive, send)
    return answer
