"""A `send` that lets telemetry hear how a request ended, and passes everything on as it is.

A JSON answer is heard when it is complete, an event stream event by event; neither is held back. What is
too long to be an error goes by unheard. Nothing here reads an answer: the `Handling` does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import Final

import msgspec
from starlette.types import Message, Send

from ..discreet import Discreet
from ..sse import EventStream
from .handling import Handling

MAX_BYTES: Final = 1 << 20  # of an answer, or of one event, that are kept to be heard


class Hearing(Discreet, msgspec.Struct, eq=False):
    """One response, as it leaves. (A struct, since one is made per message, and a class takes longer to make.)

    Args:
        send: Where it goes.
        handling: What hears it.
        start: How it began, until the first of its body comes.
        events: What splits an event stream.
        kept: What there is of a JSON answer that comes in several pieces, or None where it is not heard.
        size: How many bytes these are.
    """

    send: Send
    handling: Handling
    start: Message | None = None
    events: EventStream | None = None
    kept: list[bytes] | None = None
    size: int = 0

    def __call__(self, message: Message) -> Awaitable[None]:
        # No coroutine of its own: there would be one more for each part of each response.
        if message["type"] == "http.response.start":
            self.start = message
            self.handling.status = message["status"]
        elif self.start is not None:
            # What comes whole and tells of no error is not looked at any further, whatever it is.
            if message.get("more_body", False) or self.handling.minds(message.get("body", b"")):
                self._begin(self.start)
                self._hear(message)
            self.start = None
        elif self.events is not None or self.kept is not None:
            self._hear(message)
        return self.send(message)

    def _begin(self, start: Message) -> None:
        media_type = media_type_of(start.get("headers", ()))
        if media_type == b"application/json":
            self.kept = []
        elif media_type == b"text/event-stream":
            self.events = EventStream(max_event_bytes=MAX_BYTES)

    def _hear(self, message: Message) -> None:
        if self.events is not None:
            for event in self.events.feed(message.get("body", b"")):
                if event.data is not None:
                    self.handling.hear(event.data)
        elif self.kept is not None:
            self._collect(self.kept, message)

    def _collect(self, kept: list[bytes], message: Message) -> None:
        body = message.get("body", b"")
        self.size += len(body)
        if self.size > MAX_BYTES:
            self.kept = None
            return
        kept.append(body)
        if not message.get("more_body", False):
            self.handling.hear(b"".join(kept))


def media_type_of(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """What a response says that it is, without parameters; empty where it says nothing."""
    for name, value in headers:
        if name.lower() == b"content-type":
            return value.partition(b";")[0].strip().lower()
    return b""
