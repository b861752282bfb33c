"""`Tail` sends events to a watcher, and costs nothing without one."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from apps import Server, sessions
from clients import Client, call, http

from mcp_sessions import ConfigurationError, MCPSessionMiddleware
from mcp_sessions.cli.tail import event_in


class Watcher:
    """Who watches."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.path)
        self._socket.setblocking(False)

    def seen(self) -> list[dict[str, Any]]:
        """What has come, all that there is, each of which the command shows."""
        found: list[dict[str, Any]] = []
        while True:
            try:
                datagram = self._socket.recv(65_536)
            except BlockingIOError:
                return found
            assert event_in(datagram) is not None
            found.append(json.loads(datagram))

    def leave(self) -> None:
        self._socket.close()


@pytest.fixture
def watcher(tmp_path: Path) -> Iterator[Watcher]:
    watcher = Watcher(tmp_path / "tail")
    yield watcher
    watcher.leave()


def tailed(path: str, **options: Any) -> MCPSessionMiddleware:
    return sessions(Server(), tail=path, spans="off", **options)


async def test_a_session_s_life_is_sent_in_its_order(watcher: Watcher) -> None:
    """Created, called, refused, ended: by its ref, also afterwards; times and outcomes, and nothing that is secret."""
    client = Client(tailed(watcher.path))
    held = await client.create()
    ref = (await client.tool(session=held)).result["content"]
    await client.tool(session={"sessionId": held["sessionId"][:-8] + "AAAAAAAA"})
    await client.delete(held)
    await client.tool(session=held)
    seen = watcher.seen()
    assert held["sessionId"] not in json.dumps(seen)
    assert all(event.pop("seconds", 0) >= 0 for event in seen)
    events = [(one["event"], one["ref"], one.get("name"), one.get("error"), one.get("reason")) for one in seen]
    assert events == [
        ("created", ref, None, None, None),
        ("call", ref, "tools/call whoami", None, None),
        ("call", None, "tools/call whoami", "-32043", "token_signature"),
        ("ended", ref, None, None, "deleted"),
        ("call", ref, "tools/call whoami", "-32043", "ended"),
    ]


async def test_a_creation_that_fails_is_sent_as_a_call(watcher: Watcher) -> None:
    client = Client(tailed(watcher.path, create_limit=1))
    await client.create()
    await client.send("sessions/create")
    assert [event["event"] for event in watcher.seen()] == ["created", "call"]


async def test_a_body_that_is_not_a_message_is_sent_when_it_is_refused(watcher: Watcher) -> None:
    await call(tailed(watcher.path), http(), b"[")
    assert [(event["event"], event["ref"]) for event in watcher.seen()] == [("refused", None)]


async def test_without_a_watcher_nothing_happens(tmp_path: Path, watcher: Watcher) -> None:
    """No socket there, and one that is not read: requests are served all the same."""
    for path in (str(tmp_path / "none"), watcher.path):
        client = Client(tailed(path))
        held = await client.create()
        answers = [await client.tool(session=held) for _ in range(20)]
        assert len({answer.result["content"] for answer in answers}) == 1


@pytest.mark.parametrize("tail", ["", 7, True])
def test_it_needs_the_path_of_a_socket(tail: Any) -> None:
    with pytest.raises(ConfigurationError, match="tail="):
        tailed(tail)
