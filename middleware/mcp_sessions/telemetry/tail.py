"""`Tail`: what happens, sent to whoever watches on the same machine, as `python -m mcp_sessions tail` does.

Each event is one JSON datagram to a UNIX socket. Where nobody listens, or too slowly, it is dropped: nothing
waits, and no request fails. Sessions are named by their `ref`; no credential, no argument and no text of a
client's but its method and its tool, as on spans.
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
_TOLD: Final = frozenset(
    {"session/create", "session/delete", "sessions/create", "sessions/delete", "sessions/fork", "terminate"}
)
"""The methods that make a fact where they succeed: the draft's, SEP-1364's and our own."""


class Tail:
    """The sender.

    Args:
        path: The socket of who watches, whether anybody does or not.
    """

    def __init__(self, path: str) -> None:
        self._path: Final = path

    def __call__(self, fact: Fact) -> None:
        """Send one fact, where no message tells of it."""
        kind = type(fact)
        if kind in _EVENTS:
            self._send({"event": _EVENTS[kind], **asdict(fact)})
        elif isinstance(fact, RequestRefused) and fact.method is None:
            self._send({"event": "refused", "ref": fact.ref, "reason": fact.reason})

    def operation(
        self,
        message: Message,
        version: str | None,  # noqa: ARG002  # of no interest here
        outcome: Outcome,
        *,
        seconds: float,
        ref: str | None,
    ) -> None:
        """Send one message that has been handled."""
        if message.method in _TOLD and outcome.error is None:  # by the fact that it made
            return
        name = " ".join(filter(None, [message.label, target_of(message)]))
        said = {"name": name, "ref": ref, "seconds": seconds, "error": outcome.error, "reason": outcome.reason}
        self._send({"event": "call", **said})

    def _send(self, said: dict[str, object]) -> None:
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto(json.dumps(said).encode(), self._path)
