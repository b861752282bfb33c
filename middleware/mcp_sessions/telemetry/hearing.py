"""A `send` that lets telemetry hear how a request ended, and passes everything on as it is.

A JSON answer is heard when it is complete, an event stream event by event; neither is held back. What is
too long to be an error goes by unheard. Nothing here reads an answer: the `Handling` does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import Final

from starlette.types import Message, Send

from ..sse import EventStream
from .handling import Handling

MAX_BYTES: Final = 1 << 20  # of an answer, or of one event, that are kept to be heard


class Hearing:
    """One response, as it leaves.

    Args:
        send: Where it goes.
        handling: What hears it.
    """

    __slots__ = ("_events", "_handling", "_hears_json", "_kept", "_send", "_size")

    def __init__(self, send: Send, handling: Handling) -> None:
        self._send = send
        self._handling = handling
        self._events: EventStream | None = None
        self._hears_json = False
        self._kept: list[bytes] = []
        self._size = 0

    def __call__(self, message: Message) -> Awaitable[None]:
        # No coroutine of its own: there would be one more for each part of each response.
        if message["type"] == "http.response.start":
            self._begin(message)
        elif self._events is not None:
            for event in self._events.feed(message.get("body", b"")):
                if event.data is not None:
                    self._handling.hear(event.data)
        elif self._hears_json:
            self._collect(message)
        return self._send(message)

    def _begin(self, start: Message) -> None:
        self._handling.see(start["status"])
        media_type = media_type_of(start.get("headers", ()))
        self._hears_json = media_type == b"application/json"
        if media_type == b"text/event-stream":
            self._events = EventStream(max_event_bytes=MAX_BYTES)

    def _collect(self, message: Message) -> None:
        body, more = message.get("body", b""), message.get("more_body", False)
        self._size += len(body)
        if self._size > MAX_BYTES:
            self._hears_json = False
            self._kept.clear()
        elif more or self._kept:
            self._kept.append(body)
            if not more:
                self._handling.hear(b"".join(self._kept))
        else:
            self._handling.hear(body)


def media_type_of(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """What a response says that it is, without parameters; empty where it says nothing."""
    for name, value in headers:
        if name.lower() == b"content-type":
            return value.partition(b";")[0].strip().lower()
    return b""
