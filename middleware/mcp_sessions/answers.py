"""The answers that are ours: the results of methods about sessions, and every refusal.

Each goes out only after the wrapped server's own guards let the caller through (`admission`); where
they do not, the caller gets the server's answer instead. Some things are refused at once and put to
nobody: a body that is not one message which every parser reads alike, a session header that is given
twice, and a GET that names a session of ours, since the question would open a stream.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from . import admission, protocol, responder, splice
from .bridge import WAY
from .dialects import draft
from .errors import (
    EraRefused,
    InvalidParams,
    Refusal,
    SessionEnded,
    SessionExpired,
    SessionNotFound,
    StoreUnavailable,
)
from .events import RequestRefused
from .head import Head
from .jsonrpc import Kind, Message
from .live import Live
from .options import Options

if TYPE_CHECKING:
    from .telemetry.handling import Handling

_TOLD_TO_THE_OWNER: Final = (SessionExpired, SessionEnded)
_NONE: Final = frozenset[int]()
_FORGOTTEN: Final = frozenset({404})
_NAMELESS: Final = frozenset({400, 404})
"""What a server that keeps transport sessions says, past its guards, to who names none."""


class Answers(msgspec.Struct, frozen=True):
    """What one request may be answered with, without the application."""

    app: ASGIApp
    options: Options
    head: Head
    scope: Scope
    receive: Receive
    send: Send
    handling: Handling | None = None
    """What telemetry tells of the message."""

    async def answer(self, message: Message, ask: Callable[[], Awaitable[dict[str, Any]]]) -> None:
        """Answer a request of ours.

        Args:
            message: The request.
            ask: Does what it asks, and gives the result or raises a `Refusal`. Not called for who is not let in.
        """
        if await self._admitted(message):
            try:
                result = await ask()
            except Refusal as refusal:
                await self.refuse_at_once(message, refusal)
            else:
                await responder.respond(self.send, 200, self._success(message, result))

    async def refuse(self, message: Message, refusal: Refusal) -> None:
        """Answer a message with the error that its session, or the lack of one, deserves."""
        if await self._admitted(message, self._also_admitted):
            await self.refuse_at_once(message, refusal)

    def ended(self, message: Message, ref: str) -> Callable[[], bytes]:
        """Gives the refusal of a request whose session ended while its answer was on the way, as JSON."""
        return lambda: self.told(message, SessionEnded(ref=ref))

    def told(self, message: Message, refusal: Refusal) -> bytes:
        """The refusal of a request whose answer had begun, as JSON."""
        code = self._note(message, refusal)
        return splice.error(message.id, code, refusal.told, _data(message, refusal, self.head.version))

    async def refuse_bodyless(self, refusal: Refusal) -> None:
        """Answer a request that is refused for its session header, whatever its body says."""
        if self.scope["method"] != "DELETE" or await self._may_delete(self._also_admitted):
            await self.refuse_unread(refusal)

    async def hang_up(self, live: Live) -> None:
        """End a transport session whose client says that it is done."""
        # Behind the bridge, a server that has forgotten its own has nothing left to end.
        if await self._may_delete(_NONE if self.scope.get(WAY) is None else _FORGOTTEN):
            try:
                await live.session.end("deleted")
            except StoreUnavailable as refusal:
                await self.refuse_unread(refusal)
            else:
                await self.tell(200)

    @property
    def _also_admitted(self) -> frozenset[int]:
        """Statuses that let a refusal out: behind the bridge, who came with an id that does not cross can name none."""
        is_stopped = self.options.bridges and self.head.session_ids and self.scope.get(WAY) is None
        return _NAMELESS if is_stopped else _NONE

    async def tell(self, status: int, *headers: tuple[bytes, bytes]) -> None:
        """Answer with a status and nothing else."""
        every = [(b"content-length", b"0"), *headers]
        await self.send({"type": "http.response.start", "status": status, "headers": every})
        await self.send({"type": "http.response.body", "body": b""})

    async def _may_delete(self, also: frozenset[int]) -> bool:
        """Whether the wrapped server would let this caller end something; where not, the caller has been answered."""
        if not self.options.asks and self.scope.get(WAY) is None:
            return True
        answer = await admission.ask_to_delete(self.app, self.scope, self.receive)
        allowed = answer.allows_delete or answer.status in also
        if not allowed:
            await answer.relay(self.send)
        return allowed

    async def refuse_unread(self, refusal: Refusal) -> None:
        """Answer what has no id to answer to: a body that others might read otherwise, or no body at all."""
        code = self.options.code(refusal)
        self.options.emit(RequestRefused(refusal.reason, code, None, refusal.ref))
        await responder.refuse(self.send, refusal, status=refusal.http_status, code=code)

    async def _admitted(self, message: Message, also: frozenset[int] = _NONE) -> bool:
        """Whether we may answer; where not, the caller has been answered."""
        try:
            if self.head.is_modern and message.kind is Kind.REQUEST:
                protocol.check_envelope(message, version=self.head.version, methods=tuple(self.head.methods))
        except Refusal as refusal:
            await self.refuse_at_once(message, refusal)
            return False
        if not self.options.asks:
            return True
        answer = await admission.ask(self.app, self.scope, self.receive, message, modern=self.head.is_modern)
        admitted = answer.admits or answer.status in also
        if not admitted:
            await answer.relay(self.send)
        return admitted

    def _success(self, message: Message, result: dict[str, Any]) -> bytes:
        """The answer that gives a result, as JSON."""
        assert message.id is not None
        complete = {"resultType": "complete"} if self.head.is_modern else {}
        return splice.result(message.id, {**complete, **result})

    async def refuse_at_once(self, message: Message, refusal: Refusal) -> None:
        """Answer a message whose sender the server has let in."""
        code = self._note(message, refusal)
        status, data = self._status(message, refusal), _data(message, refusal, self.head.version)
        await responder.refuse(self.send, refusal, status=status, code=code, id=message.id, data=data)

    def _note(self, message: Message, refusal: Refusal) -> int:
        """Tell whoever listens that a message is refused; its code."""
        code = self.options.code(refusal)
        self.options.emit(RequestRefused(refusal.reason, code, message.label, refusal.ref))
        if self.handling is not None:
            self.handling.refuse(refusal, code)
        return code

    def _status(self, message: Message, refusal: Refusal) -> int:
        """HTTP status of a refusal: only a request has an answer that could carry a code, else the status must tell."""
        if message.kind is not Kind.REQUEST:
            return max(refusal.http_status, 400)
        # Handshake-era clients raise on a 4xx and lose the code that tells them what to mend.
        return 200 if isinstance(refusal, InvalidParams) and not self.head.is_modern else refusal.http_status


def _data(message: Message, refusal: Refusal, version: str | None) -> dict[str, Any] | None:
    """`error.data`: the id as its sender wrote it, and why it is refused where it is authentically the sender's."""
    if isinstance(refusal, EraRefused):
        return {"supported": sorted(protocol.HANDSHAKE_VERSIONS), "requested": version}
    if not isinstance(refusal, SessionNotFound):
        return None
    named = draft.named(message)
    data = {"sessionId": named.session_id} if named is not None else {}
    return {**data, "reason": refusal.reason} if isinstance(refusal, _TOLD_TO_THE_OWNER) else data
