"""The two kinds of body that may hold JSON-RPC messages, each read part by part: JSON, and an event stream.

What is read comes out again, byte for byte and in order, in pieces. A piece with `data` is a whole JSON-RPC message.
"""

from __future__ import annotations

from math import inf

import msgspec

from .._session.claims import RedactedRepr
from .sse import Event, EventStream


class JSONBody(RedactedRepr, msgspec.Struct, eq=False):
    """A JSON body, which is one message unless it has more than `max_bytes`."""

    max_bytes: float = inf
    parts: list[bytes] = []  # msgspec copies the default for each struct
    size: int = 0

    def feed(self, part: bytes, last: bool) -> list[Event]:
        """Take the next part of the body, and return what is complete now."""
        self.size += len(part)
        if self.size > self.max_bytes:
            self.parts.clear()
            return []
        self.parts.append(part)
        if not last:
            return []
        text = b"".join(self.parts)
        return [Event(text, text)]


class EventBody(RedactedRepr, msgspec.Struct, eq=False):
    """An event stream, in which each event may be a message."""

    events: EventStream

    def feed(self, part: bytes, last: bool) -> list[Event]:
        """Take the next part of the body, and return what is complete now."""
        pieces = self.events.feed(part)
        if last:
            pieces.append(Event(self.events.end()))
        return pieces
