"""The requests that one worker serves now, and how they end when it leaves.

A worker that has to stop is waited for until its connections have ended, which streams of a GET never do. So these
end at once, and their clients reconnect to another worker. A call may take `drain` seconds more; after that its client
gets `owner_lost`.
Source: ASGI, HTTP connection scope, "Disconnect"; the lifespan's shutdown comes after the connections have ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.types import Message as ASGIMessage

from .._protocol import rewrite
from .._protocol.headers import EVENTS, JSON, content_type
from .._refusals import refusal
from .relay import Kept, request_id_of

_BLANK_LINES: Final = (b"\n\n", b"\r\n\r\n", b"\r\r")


class Visit:
    """One request that this worker serves, or lets another one serve."""

    def __init__(self, ref: str, scope: Scope, receive: Receive, send: Send) -> None:
        self.ref: Final = ref
        self.is_stream: Final = scope["method"] == "GET"
        self._kept: Final = Kept(receive)
        self._send: Final = send
        self._is_started = self._is_events = self._is_over = False
        self._last = b""
        self._task: asyncio.Task[None] | None = None

    async def run(self, app: ASGIApp, scope: Scope) -> None:
        """Call what serves the request, until it has, or until the visit ends early."""
        self._task = asyncio.current_task()
        try:
            await app(scope, self._kept, self._pass_on)
        except asyncio.CancelledError:
            if not self._is_over:
                raise
            _uncancel(self._task)

    async def _pass_on(self, message: ASGIMessage) -> None:
        if self._is_over:
            return
        if message["type"] == "http.response.start":
            self._is_started = True
            self._is_events = content_type(message.get("headers", ()))[0] == EVENTS
        self._last = message.get("body", b"") or self._last
        await self._send(message)

    async def end(self) -> None:
        """End the request before it is served: a stream without a word, a call with an error."""
        if self._is_over:
            return
        self._is_over = True
        with suppress(Exception):  # its client is gone
            await self._send_end()
        if self._task is not None:
            self._task.cancel()

    async def _send_end(self) -> None:
        request_id, lost = request_id_of(self._kept.body), refusal("owner_lost")
        error = rewrite.error(request_id, lost.code, lost.client_message, {"reason": lost.reason})
        if not self._is_started:
            status = 200 if request_id is not None else 503
            headers = [
                (b"content-type", JSON),
                (b"content-length", b"%d" % len(error)),
                (b"cache-control", b"no-store"),
            ]
            await self._send({"type": "http.response.start", "status": status, "headers": headers})
            await self._send({"type": "http.response.body", "body": error})
        elif self._is_events:
            is_whole = not self._last or self._last.endswith(_BLANK_LINES)
            last = b"data: %b\n\n" % error if is_whole and request_id is not None else b""
            await self._send({"type": "http.response.body", "body": last})


def _uncancel(task: asyncio.Task[None] | None) -> None:
    uncancel: Callable[[], int] | None = getattr(task, "uncancel", None)  # since Python 3.11
    if uncancel is not None:
        uncancel()


class Visits:
    """The requests of one worker."""

    def __init__(self) -> None:
        self._all: dict[Visit, None] = {}
        self.is_leaving = False

    async def serve(self, ref: str, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request of a session."""
        visit = Visit(ref, scope, receive, send)
        self._all[visit] = None
        try:
            if self.is_leaving and visit.is_stream:
                await visit.end()
            else:
                await visit.run(app, scope)
        finally:
            del self._all[visit]

    def is_busy(self, ref: str) -> bool:
        """Return True if a call of a session is under way."""
        return any(visit.ref == ref and not visit.is_stream for visit in self._all)

    async def leave(self, drain: float) -> None:
        """End the streams now, and after `drain` seconds the calls as well."""
        self.is_leaving = True
        for visit in [visit for visit in self._all if visit.is_stream]:
            await visit.end()
        await asyncio.sleep(drain)
        for visit in list(self._all):
            await visit.end()
