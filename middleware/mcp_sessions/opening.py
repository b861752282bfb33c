"""The answer to an `initialize` that begins a session by SEP-1364: named at its top, and in its head if mirrored there.

The session is made, or the given one taken, only when the server's success is seen. Nothing here mints: it
asks for the session when it is due, and where that is refused the client gets the refusal for an answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from starlette.types import Message, Send

from . import splice
from .errors import Refusal
from .handshake import Handshake
from .head import SESSION_HEADER
from .responder import Responder


@dataclass(frozen=True, slots=True)
class Opened:
    """A session that an `initialize` has begun or gone on with.

    Args:
        id: Its id.
        in_head: Whether the answer's head names it, too.
    """

    id: str
    in_head: bool


Open = Callable[[bytes, "str | None"], Awaitable[Opened]]
"""Gives the session, from the successful answer and the transport session that the server named in its head."""


class Opening:
    """A `send` that names a session in a successful answer to `initialize`.

    Args:
        send: The server's `send`.
        request_id: JSON text of the request's id.
        opened: Called once, when the success is seen; may raise a `Refusal`.
        failed: Gives the answer that tells of a refusal.
        max_event_bytes: Bytes of one event that are held at the most.
    """

    __slots__ = ("_failed", "_opened", "_own", "_request_id", "_responder", "_session")

    def __init__(
        self, send: Send, request_id: bytes, opened: Open, failed: Callable[[Refusal], bytes], *, max_event_bytes: int
    ) -> None:
        self._request_id = request_id
        self._opened = opened
        self._failed = failed
        self._own: str | None = None
        self._session: Opened | None = None
        handshake = Handshake(send, request_id, self._named_in_head)
        self._responder: Final = Responder(
            handshake, _unchanged, None, save=self._answer, max_event_bytes=max_event_bytes
        )

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            own = {name.lower(): value for name, value in message.get("headers", ())}.get(SESSION_HEADER)
            self._own = None if own is None else own.decode("latin-1")
        await self._responder(message)

    async def _answer(self, text: bytes) -> bytes | None:
        if not splice.is_answer(text, self._request_id):
            return None
        try:
            self._session = await self._opened(text, self._own)
        except Refusal as refusal:
            return self._failed(refusal)
        return splice.with_field(text, self._request_id, self._session.id)

    async def _named_in_head(self) -> str | None:
        session = self._session
        return session.id if session is not None and session.in_head else None


def _unchanged(_text: bytes) -> None:
    """What stands in for a change that has to wait for something else."""
