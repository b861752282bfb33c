"""unconfirmed.py: `notifications/initialized` is sent for clients that may leave it out, once, and in time."""

from __future__ import annotations

from typing import Any

from apps import Server
from clients import call, http

from mcp_sessions._protocol.jsonrpc import Message, parse
from mcp_sessions._server.sep1364 import CONFIRMATION, Unconfirmed


def message(method: str) -> Message:
    parsed = parse(b'{"jsonrpc":"2.0","id":1,"method":"%s"}' % method.encode())
    assert isinstance(parsed, Message)
    return parsed


async def settled(waiting: Unconfirmed, transport: str, method: str) -> list[str]:
    """What reaches the server before a message of a transport session."""
    server = Server()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await waiting.settle(transport, message(method), server, scope, receive)

    await call(app, http())
    return server.methods


async def test_it_is_sent_before_the_first_message_that_needs_it() -> None:
    """Once, with nothing of the message; a ping needs none."""
    waiting = Unconfirmed()
    waiting.note("one")
    assert await settled(waiting, "one", "ping") == []
    assert await settled(waiting, "other", "tools/list") == []
    assert await settled(waiting, "one", "tools/list") == [CONFIRMATION]
    assert await settled(waiting, "one", "tools/list") == []


async def test_a_client_that_sends_it_needs_no_help() -> None:
    """Neither then nor later."""
    waiting = Unconfirmed()
    waiting.note("one")
    assert await settled(waiting, "one", CONFIRMATION) == []
    assert await settled(waiting, "one", "tools/list") == []


async def test_clients_that_never_come_back_are_forgotten() -> None:
    """The oldest first."""
    waiting = Unconfirmed(max_waiting=2)
    for transport in ("one", "two", "three"):
        waiting.note(transport)
    assert await settled(waiting, "one", "tools/list") == []
    assert await settled(waiting, "two", "tools/list") == [CONFIRMATION]
