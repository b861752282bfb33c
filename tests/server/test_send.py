"""The application gets coroutine functions: it may send and receive in tasks, as any ASGI application may."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import anyio
import pytest
from apps import Server, sessions
from clients import Client
from sniffio import current_async_library
from starlette.types import ASGIApp, Message, Receive, Scope

SUCCESS = b'{"jsonrpc":"2.0","id":1,"result":{}}'
BODIES = {
    "application/json": SUCCESS,
    "text/event-stream": b"data: %b\n\n" % SUCCESS,
    "text/plain": b"hello",
}


async def spawn(function: Any, *event: Message) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(function, *event)


async def in_a_task(function: Any, *event: Message) -> None:
    """Asyncio's own function takes nothing but a coroutine; task groups call a coroutine function themselves."""
    assert inspect.iscoroutinefunction(function)
    if current_async_library() == "asyncio":
        await asyncio.create_task(function(*event))
    else:
        await spawn(function, *event)


def in_tasks(kind: str) -> ASGIApp:
    """An application that receives and sends each event in a task of its own."""

    async def app(scope: Scope, receive: Receive, send: Any) -> None:
        await in_a_task(receive)
        headers = [(b"content-type", kind.encode())]
        await in_a_task(send, {"type": "http.response.start", "status": 200, "headers": headers})
        await spawn(send, {"type": "http.response.body", "body": BODIES[kind]})

    return app


def with_functions(app: ASGIApp) -> ASGIApp:
    """Call an application as servers do, with coroutine functions."""

    async def call(scope: Scope, receive: Receive, send: Any) -> None:
        async def own_receive() -> Message:
            return await receive()

        async def own_send(event: Message) -> None:
            await send(event)

        await app(scope, own_receive, own_send)

    return call


@pytest.mark.parametrize("is_in_session", [False, True])
@pytest.mark.parametrize("kind", BODIES)
async def test_an_application_sends_in_tasks_whatever_it_answers(kind: str, is_in_session: bool) -> None:
    """In each kind of response, with and without a session."""
    session = await Client(sessions(Server())).create() if is_in_session else None
    answer = await Client(with_functions(sessions(in_tasks(kind)))).tool(session=session)
    assert answer.status == 200
    assert answer.body.startswith(BODIES[kind][:20])
    assert (answer.body != BODIES[kind]) == (is_in_session and kind != "text/plain")
