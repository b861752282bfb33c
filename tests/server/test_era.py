"""`Wire(era="auto")`: which clients are led to the legacy era, and after what question to the wrapped server."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from apps import Server, reply, sessions
from clients import DISCOVER, INITIALIZE, Client, Header
from starlette.types import Receive, Scope, Send

CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
NODE: Header = (b"user-agent", b"node")


async def is_led(client: Client, *headers: Header) -> bool:
    """Whether a client's `server/discover` is answered as by a legacy server; else with the server's success."""
    answer = await client.send(DISCOVER, None, *headers)
    if "result" in answer.json:
        return False
    assert (answer.status, answer.error) == (404, {"code": -32601, "message": "Method not found"})
    return True


@pytest.mark.parametrize(
    ("agent", "led"),
    [
        *((agent, True) for agent in ("node", "undici/7 (x)", "Deno/2.1", "shop/1.0 Node.js/24.1 more")),
        *((agent, False) for agent in ("python-httpx/0.28", "Mozilla/5.0 (X11) Deno/2", "nodebb/1", "")),
        ("ai-sdk/mcp/2.0 runtime/Node.js/24", False),  # which sets its own
    ],
)
async def test_clients_on_runtimes_without_cookies_are_led_to_the_legacy_era(agent: str, led: bool) -> None:
    """What counts is the whole name of the runtime; `era="both"` and the default leave everybody alone."""
    header = (b"user-agent", agent.encode())
    assert await is_led(Client(sessions(Server(), era="auto")), header) is led
    assert not await is_led(Client(sessions(Server())), header)
    assert not await is_led(Client(sessions(Server(), era="both")), header)


async def test_they_get_a_session_by_header(caplog: pytest.LogCaptureFixture) -> None:
    """The server is asked once per process, and the log has a line for each runtime."""
    caplog.set_level(logging.INFO, "mcp_sessions")
    app = Server()
    client = Client(sessions(app, era="auto", admission="own"))
    legacy = Client(client.app, modern=False)
    for agent in (b"node", b"node", b"Deno/2"):
        assert await is_led(client, (b"user-agent", agent))
    assert app.methods == ["initialize"]
    begun = await legacy.send("initialize", INITIALIZE, NODE)
    named = (b"mcp-session-id", begun.headers[b"mcp-session-id"])
    assert [(await legacy.tool("count", NODE, named)).result["content"] for _ in range(2)] == [1, 2]
    assert [line.split()[3] for line in caplog.messages if line.startswith('era="auto"')] == ["node", "deno"]


async def test_a_client_of_the_draft_stays_in_its_era() -> None:
    client = Client(sessions(Server(), era="auto"))
    message = client.message(DISCOVER)
    message["params"]["_meta"][CAPABILITIES] = {"experimental": {"sessions": {}}}
    assert "result" in (await client.post(message, NODE, method=DISCOVER)).json


class Answering:
    """A server that answers `initialize` in its own way."""

    def __init__(self, status: int, body: bytes, *headers: Header) -> None:
        self.answer = status, body, headers
        self.ended: list[bytes] = []
        self.inner = Server()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        if scope["method"] == "DELETE":
            self.ended.append(headers[b"mcp-session-id"])
            await reply(send, b"")
        elif b"mcp-protocol-version" in headers:
            await self.inner(scope, receive, send)
        else:
            status, body, more = self.answer
            message = (await receive())["body"]
            body = body.replace(b"ID", message.partition(b'"id":')[2].partition(b",")[0])
            start = [(b"content-type", b"application/json"), *more]
            await send({"type": "http.response.start", "status": status, "headers": start})
            await send({"type": "http.response.body", "body": body})


SUCCESS = b'{"jsonrpc":"2.0","id":ID,"result":{"protocolVersion":"2025-11-25","capabilities":{}}}'
OWN: Header = (b"mcp-session-id", b"the-servers-own")


@pytest.mark.parametrize(
    ("answer", "options", "led"),
    [
        ((200, SUCCESS), {}, True),
        ((200, SUCCESS), {"transport": "off"}, False),
        ((404, b'{"jsonrpc":"2.0","id":ID,"error":{"code":-32601,"message":"no"}}'), {}, False),
        ((400, b"no"), {}, False),
        ((401, b"no"), {}, False),  # which settles nothing
        ((200, SUCCESS, OWN), {}, False),
        ((200, SUCCESS, OWN), {"bridge": True}, True),
    ],
)
async def test_they_are_led_where_a_session_waits_for_them(answer: Any, options: dict[str, Any], led: bool) -> None:
    """Not to a server that speaks the modern era alone, nor to one whose own transport sessions we leave alone.

    A session that the question began there is ended.
    """
    app = Answering(*answer)
    client = Client(sessions(app, era="auto", **options))
    assert [await is_led(client, NODE) for _ in range(2)] == [led, led]
    assert app.ended == ([b"the-servers-own"] if OWN in answer else [])
    app.answer = 200, SUCCESS, ()
    assert await is_led(client, NODE) is (led or answer[0] == 401)  # the next one asks again
