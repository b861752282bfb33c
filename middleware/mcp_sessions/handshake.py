"""The answer to `initialize`, held until it is known to be a success, so that a session can be named in its head.

A server that names a transport session of its own keeps it. A failed `initialize` is an HTTP 200 when it
comes as an event stream, so the head waits for the result itself. Nothing here mints: it asks for the
session when it is due, and where there is none to be had the answer goes out as it is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from starlette.types import Message, Send

from . import splice
from .head import SESSION_HEADER
from .sse import EventStream

Mint = Callable[[], Awaitable[str | None]]
"""Gives the id of a new transport session, or None where the client gets none."""

_NOT_LIMITED: Final = 1 << 62  # bytes: what is held here is one answer, which the responder has bounded


class Handshake:
    """A `send` that names a new session in the head of a successful answer.

    Args:
        send: The server's `send`.
        request_id: JSON text of the request's id.
        mint: Called once, when the success is seen.
    """

    __slots__ = ("_events", "_held", "_mint", "_request_id", "_send")

    def __init__(self, send: Send, request_id: bytes, mint: Mint) -> None:
        self._send = send
        self._request_id = request_id
        self._mint = mint
        self._held: list[Message] | None = None  # None: nothing is held, or nothing any more
        self._events = EventStream(max_event_bytes=_NOT_LIMITED)

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start" and self._may_name(message):
            self._held = [message]
        elif self._held is None:
            await self._send(message)
        else:
            self._held.append(message)
            await self._consider(message)

    def _may_name(self, start: Message) -> bool:
        """Whether an answer may be a success in which the server has named no session of its own."""
        names = {name.lower() for name, _ in start.get("headers", ())}
        return bool(start["status"] == 200 and SESSION_HEADER not in names)

    async def _consider(self, message: Message) -> None:
        body = message.get("body", b"")
        texts = [event.data for event in self._events.feed(body)]
        is_success = any(text is not None and splice.is_answer(text, self._request_id) for text in [body, *texts])
        if is_success:
            await self._name(await self._mint())
        elif not message.get("more_body", False):
            await self._name(None)

    async def _name(self, session_id: str | None) -> None:
        assert self._held is not None
        (start, *rest), self._held = self._held, None
        if session_id is not None:
            named = (SESSION_HEADER, session_id.encode("ascii"))
            start = {**start, "headers": [*start.get("headers", ()), named]}
        for message in (start, *rest):
            await self._send(message)
