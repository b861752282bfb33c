"""`era="auto"`: clients that may keep no cookies are led to the legacy era, in which they get a session by header.

Their `server/discover` is refused as a legacy server refuses it. Every client that was tried then sends `initialize`.
Clients that keep cookies, or that identify a session already, stay in the modern era.
"""

from __future__ import annotations

import logging
from secrets import token_hex
from typing import Final

import msgspec

from .._protocol.headers import SESSION_HEADER, VERSION, edit, keeps_cookies, product_of
from .._protocol.jsonrpc import REQUEST
from .._protocol.metadata import declares_sessions
from .._protocol.methods import INITIALIZE
from .._protocol.strict_json import join
from .._refusals import refusal
from .._server.answers import ResponseRecorder, end_upstream, probe_app, probe_scope
from .._server.body import replay
from .._server.context import Request, session_header_values
from .base import Dialect
from .crossing import CROSSING, Crossing

_INITIALIZE: Final = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "mcp-sessions", "version": "0"},
}
_SPEAKS_OTHERWISE: Final = frozenset({b"-32601", b"-32602", b"-32022"})
"""Errors by which a server refuses `initialize` itself: unknown method, wrong params, unsupported version."""
_NO_HOLDS: Final = 60  # seconds for which the answer counts that the server serves no legacy client
_MAX_KINDS: Final = 20  # of clients that were led, each with a line in the log
_MAX_KIND: Final = 64  # characters
_log: Final = logging.getLogger("mcp_sessions")


class Leading(Dialect):
    """What leads clients to the header. It identifies no session itself.

    Args:
        names: Whether clients get a logical session by header if the server names none.
    """

    name: str = 'era="auto"'
    is_on: bool = False

    def __init__(self, *, names: bool) -> None:
        self._names: Final = names
        self._serves_legacy: bool | None = None  # whether clients get a session in the legacy era; None until known
        self._asked_at = 0.0  # Unix seconds
        self._led: Final = set[str]()  # kinds of clients, as they are logged

    async def before_discovery(self, request: Request) -> None:
        """Refuse the `server/discover` of a client that may get a session in the legacy era only.

        The server is asked before, in the name of the caller, whether `initialize` leads anywhere: its discover result
        does not say. A yes counts for the process, a no for a minute.
        """
        message = request.current_message
        if message.kind is not REQUEST or not request.headers.is_modern or request.credentials:
            return
        if keeps_cookies(request.headers) or declares_sessions(message):
            return
        now = request.runtime.clock()
        if self._serves_legacy is None or not (self._serves_legacy or now < self._asked_at + _NO_HOLDS):
            self._serves_legacy, self._asked_at = await self._ask_for_legacy(request), now
        if not self._serves_legacy:
            return
        self._log_led(product_of(request.headers)[:_MAX_KIND])
        raise refusal("discovery_refused")

    def _log_led(self, kind: str) -> None:
        """Log what is done with a kind of client, and how to undo it: once, and for so many kinds only."""
        if kind not in self._led and len(self._led) < _MAX_KINDS:
            self._led.add(kind)
            _log.info(
                "%a (User-Agent) may keep no cookies, so such clients are led to the legacy era and get a session by "
                'header; set wire=Wire(era="both") to leave them in the modern era',
                kind,
            )

    async def _ask_for_legacy(self, request: Request) -> bool | None:
        """Ask whether `initialize` begins a logical session; None unless the server itself says yes or no.

        Guards answer a caller that they do not admit in any way: with 421 for a wrong `Host`, with a page, with a
        redirect.
        """
        request_id = b'"era-%b"' % token_hex(8).encode()
        body = join({"jsonrpc": "2.0", "id": msgspec.Raw(request_id), "method": INITIALIZE, "params": _INITIALIZE})
        question, recorder = probe_scope(request.scope, body), ResponseRecorder(request_id)
        question["headers"] = edit(question["headers"], drop=(VERSION, SESSION_HEADER))
        crossing = request.notes[CROSSING] = Crossing(begins=True, is_orphaned=True)  # what begins ends at once
        await probe_app(request.app, question, replay(body, request.receive), recorder)
        del request.notes[CROSSING]
        if not recorder.succeeded:
            return False if recorder.speaks and recorder.error_code in _SPEAKS_OTHERWISE else None
        own = [value for start in recorder.messages[:1] for value in session_header_values(start)]
        if own:  # the server keeps transport sessions, and a client gets no logical session beside them
            await end_upstream(request.app, question, request.receive, own[0])
        return not own and (self._names or bool(crossing.server_id))
