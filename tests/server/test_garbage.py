"""Requests that are refused or fail leave nothing to the garbage collector: whoever forges ids would make it run."""

from __future__ import annotations

import gc
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import FrameType
from typing import Any

import pytest
from apps import read, reply, sessions
from clients import Client, call, http
from failing import Failing
from starlette.types import Receive, Scope, Send

from mcp_sessions._errors import StateTooLarge, StoreUnavailable

Request = Callable[[Client, Any], Awaitable[object]]


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """A server that does what a tool is called: it raises an error, or writes too much."""
    message = json.loads(await read(receive) or b"{}")
    name, session = message.get("params", {}).get("name"), scope["mcp_session"]
    if name == "fails":
        raise ZeroDivisionError
    if name == "refuses":
        raise StoreUnavailable
    if name == "writes":
        session.state["text"] = "x" * 10_000
    await reply(send, json.dumps({"jsonrpc": "2.0", "id": message.get("id"), "result": {}}).encode())


def forged(session: Any) -> dict[str, str]:
    return {"sessionId": session["sessionId"][:-6] + "AAAAAA"}


REQUESTS: dict[str, Request] = {
    "forged": lambda client, session: client.tool(session=forged(session)),
    "forged to be deleted": lambda client, session: client.delete(forged(session)),
    "forged in the header": lambda client, session: client.tool(
        "", (b"mcp-session-id", forged(session)["sessionId"].encode())
    ),
    "forged in both": lambda client, session: client.tool(
        "", (b"mcp-session-id", forged(session)["sessionId"].encode()), session=session
    ),
    "forged on a GET": lambda client, session: call(
        client.app, http("GET", headers=[(b"mcp-session-id", forged(session)["sessionId"].encode())])
    ),
    "forged on a DELETE": lambda client, session: call(
        client.app, http("DELETE", headers=[(b"mcp-session-id", forged(session)["sessionId"].encode())])
    ),
    "a cookie": lambda client, session: client.tool("", (b"cookie", b"mcp_session=" + session["sessionId"].encode())),
    "no JSON": lambda client, _session: client.post(b"{"),
    "a member twice": lambda client, _session: client.post(b'{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}'),
    "a batch": lambda client, session: client.post([client.message("ping", session=session)] * 2),
    "too long": lambda client, _session: client.post(b" " * 100_000),
    "compressed": lambda client, _session: client.post(b"{}", (b"content-encoding", b"gzip")),
    "a state of another": lambda client, session: client.tool(session={**session, "state": "v1.AAAAAAAA.AAAA"}),
    "a handler that fails": lambda client, session: client.tool("fails", session=session),
    "one that fails without a session": lambda client, _session: client.tool("fails"),
    "one that refuses": lambda client, session: client.tool("refuses", session=session),
    "one that writes too much": lambda client, session: client.tool("writes", session=session),
    "ended": lambda client, session: client.tool(session=session),
    "a fork whose status the store does not know": lambda client, session: client.tool(session=session),
    "a deletion that the store fails": lambda client, session: client.delete(session),
}


@pytest.mark.parametrize("kind", REQUESTS)
async def test_a_request_that_fails_leaves_nothing_to_the_garbage_collector(kind: str) -> None:
    """An exception has the frames that it came through; one that is kept in such a frame makes a circle."""
    store = Failing()
    client = Client(sessions(app, store=store, max_body_bytes=50_000))
    session = await client.create()
    if kind == "ended":
        await client.delete(session)
    elif "fork" in kind:
        session = await client.fork(session)
    if "the store" in kind:
        store.failing = {"status", "revoke"}

    async def send() -> None:
        with suppress(ZeroDivisionError, StateTooLarge):
            await REQUESTS[kind](client, session)

    await send()
    gc.freeze()  # what there is so far, which takes long to look through
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        await send()
        gc.collect()
        left = [str(one.f_code) for one in gc.garbage if isinstance(one, FrameType)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
        gc.unfreeze()
    assert not [code for code in left if "mcp_sessions" in code]
