"""`Inspector`: a small page with live sessions, calls, refusals, and a button that ends a session.

It is a Starlette application: mount it behind your own authentication, or let the middleware serve it on loopback,
where whatever a browser shows could ask. Other sites are kept out by `Origin`, and there by `Host` (DNS rebinding).
Sources: HTML, Server-sent events; Fetch; Content Security Policy.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import logging
import re
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from .._errors import ConfigurationError, StoreUnavailable
from . import _feed as events

_ROSTER_INTERVAL: Final = 3.0  # seconds between two looks into the store
_RETRY: Final = 1.0  # seconds after which a worker tries again to bind the port
_REF: Final = re.compile(r"ses_[a-z2-7]{24}")
_log: Final = logging.getLogger("mcp_sessions")
_encode: Final = msgspec.json.Encoder().encode

PAGE: Final = Path(__file__).with_name("inspector.html")


class Roster(msgspec.Struct, tag_field="event", tag="roster"):
    """The sessions that the store has recorded; `complete` says whether those are all."""

    sessions: list[events.LiveSession]
    complete: bool


class _Hello(msgspec.Struct, tag_field="event", tag="hello"):
    """The first event."""

    worker: str


RecordedSessions = Callable[[], Awaitable[Roster | None]]
EndSession = Callable[[str, "events.LiveSession | None"], Awaitable[bool]]


class Inspector:
    """The page of one middleware, as an ASGI application: `Telemetry(inspector=Inspector())`.

        inspector = Inspector()
        routes = [Mount("/inspector", inspector, middleware=[Middleware(AuthenticationMiddleware, ...)])]

    Whoever reaches it can end sessions, so mount it behind your own authentication. It shows the calls and the sessions
    of the worker that serves it; with `tracked=True`, the sessions of all workers, from the store.
    """

    def __init__(self) -> None:
        routes = [
            Route("/", self._page),
            Route("/events", self._events),
            Route("/end", self._end, methods=["POST"]),
        ]
        self._app: Final = Starlette(routes=routes)
        self._feed: events.Feed | None = None
        self.hosts: frozenset[str] | None = None  # that a request may name; None where the application checks them
        self.password: str | None = None

    def bind(self, feed: events.Feed, recorded: RecordedSessions, end: EndSession) -> None:
        """Show a middleware: its feed, the sessions in its store, and what ends one."""
        self._feed, self._recorded, self._end_session = feed, recorded, end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refused = _refused(Request(scope), self.hosts, self.password)
        await (self._app if refused is None else refused)(scope, receive, send)

    async def _page(self, _: Request) -> Response:
        body = await anyio.Path(PAGE).read_bytes()
        return Response(body, media_type="text/html", headers=_headers(body))

    async def _events(self, _: Request) -> Response:
        assert self._feed is not None  # the middleware binds it
        return _EventStream(self._feed, self._recorded)

    async def _end(self, request: Request) -> Response:
        """End the session that a request names."""
        ref = (await request.body()).decode("latin-1")
        if not _REF.fullmatch(ref):
            raise HTTPException(400)
        assert self._feed is not None
        try:
            is_ended = await self._end_session(ref, self._feed.sessions.get(ref))
        except StoreUnavailable:
            raise HTTPException(503) from None
        _log.info("the inspector %s session %s", "ended" if is_ended else "did not find", ref)
        return PlainTextResponse("ended" if is_ended else "not found", headers=_headers())


class _EventStream(Response):
    """The events of this worker, and what the store has, as server-sent events."""

    def __init__(self, feed: events.Feed, recorded: RecordedSessions) -> None:
        super().__init__(media_type="text/event-stream", headers=_headers())
        del self.headers["content-length"]
        self._feed, self._recorded = feed, recorded

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        turn = anyio.Lock()

        async def write(event: object) -> None:
            async with turn:
                body = b"data: %b\n\n" % _encode(event)
                await send({"type": "http.response.body", "body": body, "more_body": True})

        async def list_recorded() -> None:
            while (roster := await self._recorded()) is not None:
                await write(roster)
                await anyio.sleep(_ROSTER_INTERVAL)

        async def wait_for_end() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            group.cancel_scope.cancel()

        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await write(_Hello(self._feed.worker))
        with self._feed.reading() as (known, coming):
            async with anyio.create_task_group() as group:
                group.start_soon(wait_for_end)
                group.start_soon(list_recorded)
                for event in known:
                    await write(event)
                async for event in coming:
                    await write(event)
                group.cancel_scope.cancel()


def _refused(request: Request, hosts: frozenset[str] | None, password: str | None) -> Response | None:
    """Return the answer to a request that the page, or who opens it, does not make."""
    headers, host = request.headers, request.headers.get("host", "")
    if password is not None:
        if not secrets.compare_digest(_password(headers.get("authorization", "")), password.encode()):
            challenge = {"WWW-Authenticate": 'Basic realm="mcp-sessions inspector"'}
            return PlainTextResponse("Unauthorized", 401, headers={**_headers(), **challenge})
    elif hosts is not None and host not in hosts:
        return PlainTextResponse("Misdirected Request", 421, headers=_headers())
    is_own = headers.get("origin") in {f"http://{host}", f"https://{host}"}  # the latter behind a proxy
    is_asked = headers.get("sec-fetch-site", "none") in {"none", "same-origin"} or request.url.path.endswith("/")
    if not is_asked or (request.method == "POST" and not (is_own and headers.get("x-inspector") == "end")):
        return PlainTextResponse("Forbidden", 403, headers=_headers())
    return None


def _password(authorization: str) -> bytes:
    scheme, _, credentials = authorization.partition(" ")
    try:
        return base64.b64decode(credentials, validate=True).partition(b":")[2] if scheme.lower() == "basic" else b""
    except ValueError:
        return b""


def _headers(body: bytes = b"") -> dict[str, str]:
    """Return headers with which nothing but the page's own script and style runs, and no other site frames it."""
    sources = "".join(
        f"; {tag.decode()}-src 'sha256-{base64.b64encode(hashlib.sha256(text).digest()).decode()}'"
        for tag, text in re.findall(rb"<(style|script)>(.*?)</\1>", body, re.DOTALL)
    )
    return {
        "Content-Security-Policy": f"default-src 'none'; connect-src 'self'; img-src data:{sources}; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
        "Cache-Control": "no-store",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
    }


class LocalServer:
    """Serves an inspector on an address of this machine, by uvicorn; the first worker that binds the port does."""

    def __init__(self, inspector: Inspector, address: str, password: str | None) -> None:
        try:
            import uvicorn
        except ImportError:
            raise ConfigurationError(
                f"telemetry.inspector={address!r} is served by uvicorn: install it, or mount an Inspector()"
            ) from None
        host, _, port = address.rpartition(":")
        self._uvicorn: Final = uvicorn
        self._host: Final = host.strip("[]").replace("localhost", "127.0.0.1")
        self._port: Final = int(port)
        self._inspector: Final = inspector
        inspector.hosts = frozenset(f"{name}:{port}" for name in (host, "127.0.0.1", "localhost", "[::1]"))
        inspector.password = password
        self._server: Any = None
        self._scope: anyio.CancelScope | None = None

    async def run(self) -> None:
        """Serve until stopped, as soon as no other worker does."""

        class Server(self._uvicorn.Server):  # type: ignore[name-defined, misc]  # imported where it is needed
            @contextmanager
            def capture_signals(self) -> Iterator[None]:  # which the application's own server does
                yield

        self._ended = anyio.Event()
        try:
            with anyio.CancelScope() as self._scope:
                bound = await self._bind()
                if bound is not None:
                    given: dict[str, Any] = {"log_config": None, "lifespan": "off", "timeout_graceful_shutdown": 1}
                    self._server = Server(self._uvicorn.Config(self._inspector, **given))
                    _log.info("inspector: http://%s:%d/", self._host, self._port)
                    with bound:
                        await self._server.serve(sockets=[bound])
        finally:
            self._ended.set()

    async def stop(self) -> None:
        """Stop serving, and close the port."""
        if self._server is not None:
            self._server.should_exit = True
            await self._ended.wait()
        elif self._scope is not None:
            self._scope.cancel()

    async def _bind(self) -> socket.socket | None:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        while True:
            try:
                return socket.create_server((self._host, self._port), family=family)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    _log.error("cannot start the inspector at %s:%d: %s", self._host, self._port, error.strerror)
                    return None
                await anyio.sleep(_RETRY)
