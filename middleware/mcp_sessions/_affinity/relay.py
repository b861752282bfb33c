"""One request that another worker serves: its scope, its body and the answer, as frames over a `Channel`.

The body is kept while it passes, so that the request can be served elsewhere if the owner does not take it, and so that
its id is known if the owner is lost. Event streams leave in whole events.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, Literal

from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.types import Message as ASGIMessage

from .._errors import Refusal
from .._protocol import rewrite
from .._protocol.bodies import EventBody
from .._protocol.headers import EVENTS, JSON, content_type
from .._protocol.jsonrpc import REQUEST, Batch, parse
from .._protocol.sse import EventStream
from .._refusals import refusal
from .frames import PIECE, Channel, ConnectionLost

SCOPE: Final = (
    *("type", "asgi", "http_version", "method", "scheme", "path", "raw_path", "query_string", "root_path"),
    *("headers", "client", "server"),
)
"""What another worker gets of a scope. That worker adds the `state` of its lifespan."""
_log: Final = logging.getLogger("mcp_sessions")


Outcome = Literal["served", "refused", "gone"]
"""The request was served; its worker does not have the session; its worker is gone or leaves, and has not run it."""


class Kept:
    """A `receive` that keeps what it has returned, so that the request can be received again."""

    def __init__(self, receive: Receive) -> None:
        self._receive: Final = receive
        self._kept: list[ASGIMessage] = []

    async def __call__(self) -> ASGIMessage:
        message = await self._receive()
        self._kept.append(message)
        return message

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self._kept)

    def again(self) -> Receive:
        """Return a `receive` that begins with what was received, and keeps what comes after it."""
        place = 0

        async def receive() -> ASGIMessage:
            nonlocal place
            if place == len(self._kept):
                await self()
            place += 1
            return self._kept[place - 1]

        return receive


class Relay:
    """One request on its way to the worker that owns its session, and the answer on its way back."""

    def __init__(self, channel: Channel, scope: Scope, receive: Kept, send: Send, max_event_bytes: int) -> None:
        self._channel: Final = channel
        self._scope: Final = scope
        self._receive: Final = receive
        self._send_out: Final = send
        self._max_event_bytes: Final = max_event_bytes
        self._status: int | None = None
        self._events: EventBody | None = None
        self._last_text = b""
        self._is_complete = False

    async def run(self, ref: str, is_alive: Callable[[], Awaitable[bool]]) -> Outcome:
        """Let the other worker serve the request.

        Args:
            ref: The public name of the session.
            is_alive: Called if the worker is silent; returns False once it is known to be gone.

        Raises:
            ConnectionLost: It was lost within an answer that is no event stream.
        """
        scope = {name: self._scope[name] for name in SCOPE if name in self._scope}
        await self._channel.send({"type": "request", "ref": ref, "scope": scope})
        pumping = asyncio.get_running_loop().create_task(self._pump())
        try:
            while not self._is_complete:
                try:
                    message = await self._channel.receive()
                except TimeoutError:
                    if not await is_alive():
                        raise ConnectionLost from None
                    continue
                if message["type"] == "refused":
                    return "gone" if message["is_leaving"] else "refused"
                if message["type"] == "failed":
                    raise RuntimeError("the application raised an error in the process that has the session")
                if message["type"] == "end":
                    break
                await self._pass_on(message)
        except ConnectionLost:
            return await self._end_early()
        finally:
            pumping.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await pumping
        return "served"

    async def _pump(self) -> None:
        """Send what the client sends."""
        receive = self._receive.again()  # another worker may have refused the request before
        with suppress(ConnectionLost):
            while True:
                message = await receive()
                body, is_last = message.get("body", b""), not message.get("more_body", False)
                while len(body) > PIECE:
                    await self._channel.send({"type": message["type"], "body": body[:PIECE], "more_body": True})
                    body = body[PIECE:]
                await self._channel.send({"type": message["type"], "body": body, "more_body": not is_last})
                if message["type"] == "http.disconnect":
                    return

    async def _pass_on(self, message: ASGIMessage) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            headers = message["headers"] = [(name, value) for name, value in message["headers"]]
            media_type, coding = content_type(headers)
            if media_type == EVENTS and coding is None:
                self._events = EventBody(EventStream(self._max_event_bytes))
        elif message["type"] == "http.response.body":
            self._is_complete = not message.get("more_body", False)
            if self._events is not None:
                pieces = self._events.feed(message.get("body", b""), self._is_complete)
                self._last_text = next((one.data for one in reversed(pieces) if one.data), self._last_text)
                message["body"] = b"".join(one.raw for one in pieces)
                if not (message["body"] or self._is_complete):
                    return
        await self._send_out(message)

    async def _end_early(self) -> Outcome:
        """Tell the client that its request is lost with its owner."""
        if self._scope["method"] == "GET" and self._status is None:
            return "gone"
        request_id, lost = request_id_of(self._receive.body), refusal("owner_lost")
        error = rewrite.error(request_id, lost.code, lost.client_message, {"reason": lost.reason})
        if request_id is not None:
            _log.warning("a worker ended during a call: its client gets owner_lost, since the call may have run")
        if self._status is None:
            headers = [
                (b"content-type", JSON),
                (b"content-length", b"%d" % len(error)),
                (b"cache-control", b"no-store"),
            ]
            status = 200 if request_id else 503
            await self._send_out({"type": "http.response.start", "status": status, "headers": headers})
            await self._send_out({"type": "http.response.body", "body": error})
        elif self._events is None:  # a part of a JSON text is never made whole
            raise ConnectionLost
        else:
            is_answered = request_id is None or rewrite.is_response(self._last_text, request_id)
            last = b"" if is_answered else b"data: %b\n\n" % error
            await self._send_out({"type": "http.response.body", "body": last})
        return "served"


def request_id_of(body: bytes) -> bytes | None:
    """Return the id of the request in a body, as JSON, or None without one."""
    try:
        message = parse(body)
    except (Refusal, Batch):
        return None
    return message.id if message.kind is REQUEST else None


MAX_SILENCES: Final = 10  # of `SILENCE` seconds each, after which a caller that may be stopped counts as gone


async def serve(channel: Channel, app: ASGIApp, scope: Scope) -> None:
    """Serve a request that another worker has received."""
    events = asyncio.Queue[ASGIMessage](4)

    async def send(message: ASGIMessage) -> None:
        body = message.get("body", b"")
        with suppress(ConnectionLost):  # as servers do, whose clients are gone
            while len(body) > PIECE:
                await channel.send({**message, "body": body[:PIECE], "more_body": True})
                body = body[PIECE:]
            await channel.send({**message, "body": body} if body else message)

    pumping, outcome = asyncio.get_running_loop().create_task(_pump(channel, events)), "end"
    try:
        await app(scope, _receive_from(events), send)
    except Exception as error:  # noqa: BLE001  # as servers do, which then answer with 500
        _log.error("a request of another worker raised %s", type(error).__name__, exc_info=error)
        outcome = "failed"
    finally:
        pumping.cancel()
    with suppress(ConnectionLost):
        await channel.send({"type": outcome})


async def _pump(channel: Channel, events: asyncio.Queue[ASGIMessage]) -> None:
    """Receive what the client sends, until it or the worker in between is gone."""
    silences, message = 0, dict[str, Any]()
    while message.get("type") != "http.disconnect":
        try:
            message, silences = await channel.receive(), 0
        except TimeoutError:
            silences += 1
            if silences < MAX_SILENCES:
                continue
            message = {"type": "http.disconnect"}
        except ConnectionLost:
            message = {"type": "http.disconnect"}
        await events.put(message)


def _receive_from(events: asyncio.Queue[ASGIMessage]) -> Receive:
    gone: ASGIMessage | None = None

    async def receive() -> ASGIMessage:
        nonlocal gone
        if gone is None:
            message = await events.get()
            if message["type"] != "http.disconnect":
                return message
            gone = message
        return gone

    return receive
