"""`Inspector`: a small page on its own port, with live sessions, calls, refusals, and a button that ends a session.

The first worker of a machine that binds the port serves the page, from the feeds of all. Whatever a browser shows could
ask here: other sites are kept out by the `Host` header (DNS rebinding), by `Origin`, and by a token for each start of
the server, which only the page can read. Sources: RFC 9112; HTML, Server-sent events; Content Security Policy.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import logging
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Final

import anyio
import msgspec
from anyio.abc import ByteReceiveStream, ByteStream, Listener, SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream

from .._errors import StoreUnavailable
from .._session.claims import RedactedRepr
from . import _feed as events

_MAX_HEAD: Final = 16_384  # bytes; browsers send the cookies of all ports of a host
_MAX_BODY: Final = 256  # bytes
_MAX_CONNECTIONS: Final = 50
_MAX_KNOWN: Final = 10_000  # sessions
_PATIENCE: Final = 10.0  # seconds for a request to arrive, and for an event to leave
_INTERVAL: Final = 0.5  # seconds between two looks for workers
_ROSTER_INTERVAL: Final = 3.0  # seconds between two looks into the store
_RETRY: Final = 1.0  # seconds after which a worker tries again to bind the port
_REQUEST: Final = re.compile(rb"([A-Z]{1,16}) (/[!-~]*) HTTP/1\.1")
_HEADER: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*)")
_REF: Final = re.compile(r"ses_[a-z2-7]{24}")
_METHODS: Final = {"/": "GET", "/events": "GET", "/end": "POST"}
_log: Final = logging.getLogger("mcp_sessions")

PAGE: Final = Path(__file__).with_name("inspector.html")
RecordedSessions = Callable[[], Awaitable["Roster | None"]]
EndSession = Callable[[events.LiveSession], Awaitable[bool]]


class Roster(msgspec.Struct, tag_field="event", tag="roster"):
    """The sessions that the store has recorded; `complete` says whether those are all."""

    sessions: list[events.LiveSession]
    complete: bool


class _Hello(RedactedRepr, msgspec.Struct, tag_field="event", tag="hello"):
    token: str


class _Gone(msgspec.Struct, tag_field="event", tag="gone"):
    worker: str


class _Refused(Exception):
    """A request is answered with an error; the argument is its status."""


class _Request(RedactedRepr, msgspec.Struct):
    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes


class Inspector:
    """The page of one middleware.

    Args:
        address: Host and port.
        token: The password, or None where the address is a loopback one.
        feed: This worker's; the page shows all in its directory.
        recorded: Returns the sessions in the store, or None where it has none or does not answer.
        end: Ends a session, and returns whether it did.
    """

    def __init__(
        self, address: str, token: str | None, *, feed: events.Feed, recorded: RecordedSessions, end: EndSession
    ) -> None:
        host, _, port = address.rpartition(":")
        self._host: Final = host.strip("[]").replace("localhost", "127.0.0.1")
        self._port: Final = int(port)
        self._hosts: Final = {f"{name}:{port}" for name in (host, "127.0.0.1", "localhost", "[::1]")}
        self._password: Final = token
        self._feed: Final = feed
        self._recorded: Final = recorded
        self._end: Final = end
        self._token: Final = secrets.token_urlsafe(32)
        self._known: Final[dict[str, events.LiveSession]] = {}
        self._connections = 0
        self._scope: anyio.CancelScope | None = None

    async def run(self) -> None:
        """Serve the page until stopped, as soon as no other worker does."""
        with anyio.CancelScope() as self._scope:
            listener = await self._listener() if self._feed.worker else None  # it may have been closed by now
            if listener is not None:
                async with listener:
                    _log.info("inspector: http://%s:%d/", self._host, self._port)
                    await listener.serve(self._serve)

    def stop(self) -> None:
        """Stop serving; the feed is closed with it."""
        if self._scope is not None:
            self._scope.cancel()

    async def _listener(self) -> Listener[SocketStream] | None:
        while True:
            try:
                listeners = await anyio.create_tcp_listener(local_host=self._host, local_port=self._port)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    _log.error("cannot start the inspector at %s:%d: %s", self._host, self._port, error.strerror)
                    return None
                await anyio.sleep(_RETRY)
            else:
                return listeners.listeners[0]  # an IP address has one

    async def _serve(self, stream: ByteStream) -> None:
        self._connections += 1
        try:
            async with stream:
                if self._connections <= _MAX_CONNECTIONS:
                    await self._answer(stream)
        except Exception as error:  # noqa: BLE001  # mostly that a browser left; it must not end the page for others
            _log.debug("inspector: %s", type(error).__name__)
        finally:
            self._connections -= 1

    async def _answer(self, stream: ByteStream) -> None:
        try:
            with anyio.fail_after(_PATIENCE):
                request = await _read(stream)
            self._admit(request)
            if request.target == "/events":
                await stream.send(_head(200, "text/event-stream"))
                await self._send_events(stream)
            elif request.target == "/":
                await stream.send(_head(200, "text/html; charset=utf-8", await anyio.Path(PAGE).read_bytes()))
            else:
                await stream.send(_head(200, "text/plain", await self._ended(request)))
        except _Refused as refused:
            await stream.send(_head(refused.args[0], "text/plain", HTTPStatus(refused.args[0]).phrase.encode()))
        except TimeoutError:
            return

    def _admit(self, request: _Request) -> None:
        """Refuse a request that the page, or who opens it, does not make."""
        headers, host = request.headers, request.headers["host"]
        if self._password is not None:
            if not secrets.compare_digest(_password(headers.get("authorization", "")), self._password.encode()):
                raise _Refused(401)
        elif host not in self._hosts:
            raise _Refused(421)
        if headers.get("sec-fetch-site", "none") not in {"none", "same-origin"} and request.target != "/":
            raise _Refused(403)
        method = _METHODS.get(request.target)
        if method != request.method:
            raise _Refused(404 if method is None else 405)
        if method == "POST":
            given = headers.get("x-inspector-token", "").encode()
            is_own = headers.get("origin") in {f"http://{host}", f"https://{host}"}  # the latter behind a proxy
            if not (is_own and secrets.compare_digest(given, self._token.encode())):
                raise _Refused(403)

    async def _ended(self, request: _Request) -> bytes:
        """End the session that a request names."""
        ref = request.body.decode("latin-1")
        if not _REF.fullmatch(ref):
            raise _Refused(400)
        known = self._known.get(ref)
        if known is None:
            raise _Refused(404)
        try:
            is_ended = await self._end(known)
        except StoreUnavailable:
            raise _Refused(503) from None
        _log.info("the inspector %s session %s", "ended" if is_ended else "did not find", ref)
        return b"ended" if is_ended else b"not found"

    async def _send_events(self, stream: ByteStream) -> None:
        turn, following = anyio.Lock(), set[Path]()

        async with anyio.create_task_group() as group:

            async def send(event: object) -> None:
                async with turn:
                    try:
                        with anyio.fail_after(_PATIENCE):
                            await stream.send(b"data: %b\n\n" % events.encode(event))
                    except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                        _log.debug("inspector: a page was closed, or stopped reading")
                        group.cancel_scope.cancel()

            async def follow(path: Path) -> None:
                await self._follow(path, send)
                following.discard(path)

            async def wait_for_end() -> None:
                with suppress(anyio.BrokenResourceError, anyio.EndOfStream):
                    await stream.receive(1)
                group.cancel_scope.cancel()

            await send(_Hello(self._token))
            group.start_soon(wait_for_end)
            group.start_soon(self._send_roster, send)
            while True:
                for path in events.sockets(self._feed.directory) - following:
                    following.add(path)
                    group.start_soon(follow, path)
                await anyio.sleep(_INTERVAL)

    async def _follow(self, path: Path, send: Callable[[object], Awaitable[None]]) -> None:
        """Pass on the events of one worker for as long as it lives."""
        connection = events.connect(path)
        if connection is None:
            return
        with connection.socket:
            # Not by anyio's stream: on asyncio, one that is cancelled while something arrives logs an error.
            while not connection.is_ended:
                await anyio.wait_readable(connection.socket)
                for event in connection.read():
                    self._learn(event)
                    await send(event)
        await send(_Gone(connection.worker))

    async def _send_roster(self, send: Callable[[object], Awaitable[None]]) -> None:
        while True:
            roster = await self._recorded()
            if roster is not None:
                for session in roster.sessions:
                    self._learn(session)
                await send(roster)
            await anyio.sleep(_ROSTER_INTERVAL)

    def _learn(self, event: object) -> None:
        """Remember when a session ends that the page may ask to end."""
        if isinstance(event, events.Created):
            event = event.session
        if isinstance(event, events.LiveSession):
            self._known[event.ref] = event
            if len(self._known) > _MAX_KNOWN:
                del self._known[next(iter(self._known))]


async def _read(stream: ByteReceiveStream) -> _Request:
    """Return one request; anything unusual is refused."""
    buffered = BufferedByteReceiveStream(stream)
    try:
        first, *lines = (await buffered.receive_until(b"\r\n\r\n", _MAX_HEAD)).split(b"\r\n")
    except (anyio.DelimiterNotFound, anyio.IncompleteRead):
        raise _Refused(400) from None
    request, headers = _REQUEST.fullmatch(first), dict[str, str]()
    for line in lines:
        header = _HEADER.fullmatch(line)
        name = "" if header is None else header[1].decode().lower()
        if header is None or name in headers:
            raise _Refused(400)
        headers[name] = header[2].decode("latin-1").rstrip(" \t")
    length = headers.get("content-length", "0")
    if request is None or "host" not in headers or "transfer-encoding" in headers:
        raise _Refused(400)
    if not (re.fullmatch("[0-9]{1,4}", length) and int(length) <= _MAX_BODY):
        raise _Refused(400)
    try:
        body = await buffered.receive_exactly(int(length))
    except anyio.IncompleteRead:
        raise _Refused(400) from None
    return _Request(request[1].decode(), request[2].decode(), headers, body)


def _password(authorization: str) -> bytes:
    scheme, _, credentials = authorization.partition(" ")
    try:
        return base64.b64decode(credentials, validate=True).partition(b":")[2] if scheme.lower() == "basic" else b""
    except ValueError:
        return b""


def _head(status: int, media_type: str, body: bytes | None = None) -> bytes:
    """Return the start of a response, and its body where that is known."""
    hashes = {
        tag.decode(): base64.b64encode(hashlib.sha256(text).digest()).decode()
        for tag, text in re.findall(rb"<(style|script)>(.*?)</\1>", body or b"", re.DOTALL)
    }
    sources = "".join(f"; {tag}-src 'sha256-{digest}'" for tag, digest in hashes.items())
    headers = {
        "Content-Type": media_type,
        "Content-Security-Policy": f"default-src 'none'; connect-src 'self'; img-src data:{sources}; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
        "Cache-Control": "no-store",
        "Connection": "close",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
    }
    if status == 401:
        headers["WWW-Authenticate"] = 'Basic realm="mcp-sessions inspector"'
    if body is not None:
        headers["Content-Length"] = str(len(body))
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{lines}\r\n".encode() + (body or b"")
