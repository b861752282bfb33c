"""`Tail`: events for `mcp-sessions tail` on the same machine, each one JSON datagram to a UNIX socket.

An event that is not read in time is dropped: no request waits or fails. Of a client's words an event has the method and
the tool alone, as a span does.
"""

from __future__ import annotations

import json
import socket
from contextlib import suppress
from dataclasses import asdict
from typing import Final

from .._protocol.jsonrpc import Message
from .._session.events import Fact, RequestRefused, SessionCreated, SessionDeleted
from .attributes import target_of
from .outcome import Outcome

_EVENTS: Final[dict[type[Fact], str]] = {SessionCreated: "created", SessionDeleted: "ended"}
_EVENTFUL: Final = frozenset(
    {"session/create", "session/delete", "sessions/create", "sessions/delete", "sessions/fork", "terminate"}
)
"""The methods whose success is a fact already: the draft's, SEP-1364's and our own."""


class Tail:
    """The sender to a socket, whether anything reads it or not."""

    def __init__(self, path: str) -> None:
        self._path: Final = path

    def __call__(self, fact: Fact) -> None:
        """Send one fact, unless it belongs to a message, which is sent itself."""
        kind = type(fact)
        if kind in _EVENTS:
            self._send({"event": _EVENTS[kind], **asdict(fact)})
        elif isinstance(fact, RequestRefused) and fact.method is None:
            self._send({"event": "refused", "ref": fact.ref, "reason": fact.reason})

    def operation(
        self,
        message: Message,
        version: str | None,  # noqa: ARG002  # not part of the event
        outcome: Outcome,
        *,
        seconds: float,
        ref: str | None,
    ) -> None:
        """Send one message that has been handled, unless a fact was sent for it."""
        if message.method in _EVENTFUL and outcome.error is None:
            return
        name = " ".join(filter(None, [message.label, target_of(message)]))
        event = {"event": "call", "name": name, "ref": ref, "seconds": seconds}
        self._send({**event, "error": outcome.error, "reason": outcome.reason})

    def _send(self, event: dict[str, object]) -> None:
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto(json.dumps(event).encode(), self._path)
