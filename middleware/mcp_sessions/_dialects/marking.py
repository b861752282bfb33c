"""What a bridged server sends: requests, which leave with an epoch in their ids, and that it has no session."""

from __future__ import annotations

from typing import Final

from starlette.types import Message as ASGIMessage
from starlette.types import Send

from .._protocol.bodies import EventBody, JSONBody
from .._protocol.epochs import mark
from .._protocol.headers import EVENTS, JSON, content_type, independent_of_body
from .._protocol.sse import Event, EventStream

_NOT_FOUND: Final = 404
_METHOD_NOT_FOUND: Final = b"-32601"


class MarkingSend:
    """A `send` that marks the requests in one response, be it JSON or an event stream.

    Args:
        send: What takes the response.
        epoch: The epoch of the session.
        max_event_bytes: How much of one event is buffered; a longer one passes as it is.
    """

    def __init__(self, send: Send, epoch: int, max_event_bytes: int) -> None:
        self._send: Final = send
        self._epoch: Final = epoch
        self._max_event_bytes: Final = max_event_bytes
        self._body: JSONBody | EventBody | None = None
        self._start: ASGIMessage | None = None  # of a JSON response, whose length may change

    async def __call__(self, message: ASGIMessage) -> None:
        if message["type"] == "http.response.start":
            await self._begin(message)
        elif message["type"] == "http.response.body" and self._body is not None:
            await self._send_part(message, self._body)
        else:
            await self._send(message)

    async def _begin(self, start: ASGIMessage) -> None:
        media_type, coding = content_type(start.get("headers", ()))
        if coding is None and media_type == JSON:
            self._body, self._start = JSONBody(), start
            return
        if coding is None and media_type == EVENTS:
            self._body = EventBody(EventStream(self._max_event_bytes))
            start = {**start, "headers": independent_of_body(start["headers"])}
        await self._send(start)

    async def _send_part(self, message: ASGIMessage, body: JSONBody | EventBody) -> None:
        part, last = message.get("body", b""), not message.get("more_body", False)
        passed = b"".join(map(self._marked, body.feed(part, last)))
        if not (passed or last):
            return
        if self._start is not None:
            start, self._start = self._start, None
            if passed != part:
                length = (b"content-length", b"%d" % len(passed))
                start = {**start, "headers": [*independent_of_body(start["headers"]), length]}
            await self._send(start)
        await self._send({**message, "body": passed})

    def _marked(self, piece: Event) -> bytes:
        if piece.data is None:
            return piece.raw
        text = mark(piece.data, self._epoch)
        if text is piece.data:
            return piece.raw
        return text if isinstance(self._body, JSONBody) else piece.with_data(text)


class Recorder:
    """A `send` that holds an answer which says that the server has no such session."""

    def __init__(self, send: Send) -> None:
        self._send: Final = send
        self._held: list[ASGIMessage] = []

    async def __call__(self, message: ASGIMessage) -> None:
        if self._held or message.get("status") == _NOT_FOUND:
            self._held.append(message)
        else:
            await self._send(message)

    @property
    def has_forgotten(self) -> bool:
        """Whether the server has forgotten the session; it lacks no method."""
        body = b"".join(message.get("body", b"") for message in self._held)
        return bool(self._held) and _METHOD_NOT_FOUND not in body

    async def relay(self) -> None:
        """Send what was held."""
        for message in self._held:
            await self._send(message)
