"""The answer that most requests in sessions get: one JSON body, into which the session is written.

Any other answer goes on in a `ResponseFilter`, from where it is; so here is only what most answers need, in one object
that is the application's `receive`, too.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Final, Literal, cast

from starlette.types import Message as ASGIMessage

from .._errors import StateError
from .._protocol import _native, rewrite
from .._protocol.decision import ATTACH, Decision
from .._protocol.jsonrpc import Message
from .._protocol.strict_json import join
from .._session.claims import RedactedRepr
from .body import Replay
from .context import Given, RequestContext
from .response import INTERNAL_ERROR, JSON, OBSERVED, OF_ONE_BODY, Headers, ResponseFilter
from .rewrites import response_filter
from .sessions import ActiveSession

if TYPE_CHECKING:
    from ..telemetry._outcome import RequestTelemetry

_OK: Final = 200
_ATTACHED: Final = Decision(ATTACH)
_PIECE: Final = 1 << 18  # bytes
_OF_A_BODY: Final = OF_ONE_BODY | {b"content-type", b"content-encoding"}


class PlainResponse(RedactedRepr, Replay):
    """The `receive` and, in `pass_on`, the `send` of one request that has a session."""

    given: Given
    message: Message
    session: ActiveSession
    telemetry: RequestTelemetry | None  # what records the message, if anything does
    # The start of the answer and its headers that stay true, while they are held; then False.
    held: tuple[ASGIMessage, Headers] | Literal[False] | None = None
    filter: ResponseFilter | None = None  # where the answer goes on, if it needs more

    @property
    def context(self) -> RequestContext:
        return RequestContext(None, self.receive, *self.given, self.telemetry)

    def pass_on(self, part: ASGIMessage) -> Awaitable[None]:
        """Take a part of the answer, as `send` does."""
        held, kind = self.held, part["type"]
        if held is None:
            kept = (_native.kept or json_headers)(part.get("headers")) if kind == "http.response.start" else None
            if kept is not None:
                if self.telemetry is not None and part["status"] != _OK:
                    self.telemetry.status = part["status"]
                self.held = part, kept
                return _NOTHING
        elif held and kind == "http.response.body" and not part.get("more_body"):
            session = self.session
            if session.runtime.clock() < session.late_at:
                self.held = False
                return self._complete(held, part)
        return self._pass_on(part)

    async def _complete(self, held: tuple[ASGIMessage, Headers], part: ASGIMessage) -> None:
        start, kept = held
        session, request_id, send = self.session, join(self.message.given_id), self.given[3]
        named = session.metadata
        text, echoed = part.get("body", b""), None
        try:
            if len(text) > OBSERVED and (found := rewrite.continuation(text, request_id, named)) is not None:
                await self._send_long(dict(start, headers=kept), text, *found)
                return
            changed = echoed = rewrite.echo(text, request_id, named)
        except StateError as error:
            text = changed = rewrite.error(request_id, INTERNAL_ERROR, str(error))
        if changed is not None:
            kept.append((b"content-length", join(len(changed))))
            start, part = start.copy(), {"type": "http.response.body", "body": changed}  # type: ignore[attr-defined]
            start["headers"] = kept
        if self.telemetry is not None and len(text) <= OBSERVED:
            self.telemetry.read(text, echoed is not None)
        await send(start)
        await send(part)

    async def _send_long(self, start: ASGIMessage, text: bytes, size: int, more: bytes) -> None:
        """Send so many bytes of a body and more after them, in pieces: to copy all takes half as long as to read it."""
        start["headers"].append((b"content-length", join(size + len(more))))
        await self.given[3](start)
        for at in range(0, size, _PIECE):
            piece = text[at : min(at + _PIECE, size)]
            await self.given[3]({"type": "http.response.body", "body": piece, "more_body": True})
        await self.given[3]({"type": "http.response.body", "body": more})

    async def _pass_on(self, part: ASGIMessage) -> None:
        held, self.held = self.held, False
        if self.filter is None:
            self.filter = response_filter(self.context, self.message, _ATTACHED, self.session)
            assert self.filter is not None
            if held:
                await self.filter(held[0])
        await self.filter(part)

    @property
    def unsent(self) -> ResponseFilter | None:
        """What can still answer in the application's place, or None where its answer has left."""
        if self.filter is None and self.held is not False:
            return response_filter(self.context, self.message, _ATTACHED, self.session)
        return self.filter

    def close(self, error: BaseException | None) -> None:
        """Let nothing change the session any more; `error` is the application's, where it goes on to the server."""
        close_session(self.session, self.filter)
        if self.telemetry is not None:
            self.telemetry.end(error)


def close_session(session: ActiveSession, response: ResponseFilter | None) -> None:
    """Let nothing change a session any more, unless its client can resume the answer."""
    if response is not None and response.guard is not None:
        response.finish(session)
    elif not session.is_shut:
        session.shut()


def json_headers(headers: object) -> Headers | None:
    """Return the headers of a response that stay true when its body, JSON, is changed; None where that is not certain.

    In the common form they are a list, their names are in lower case, and the type has no parameters.
    """
    kept: Headers = []
    is_json = False
    for header in headers if isinstance(headers, list) else ():
        name = header[0]
        if name == b"content-type":
            if header[1] != JSON:
                return None
            is_json = True
        elif name in OF_ONE_BODY:
            continue
        elif name.lower() in _OF_A_BODY:
            return None
        kept.append(header)
    return kept if is_json else None


class _Nothing(tuple[()]):
    """What can be awaited again and again, and is over at once: a coroutine has to be made each time."""

    __slots__ = ()
    __await__ = tuple.__iter__


_NOTHING: Final = cast("Awaitable[None]", _Nothing())
