"""`Inspector`: a small page with live sessions, calls, refusals, and a button that ends a session.

It is a Starlette application: mount it behind your own authentication, or let the middleware serve it on loopback,
where any page in a browser could send requests. Other sites are kept out by `Origin`, and there by `Host` (DNS
rebinding). The page asks for the state every two seconds, each time over a new connection, so that the operating system
or a load balancer passes it to all workers in turn; the page puts their answers together. No response stays open, so
none delays the stop of a server.
Sources: HTML; Fetch; Content Security Policy.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import re
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import anyio
import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from .._errors import ConfigurationError, StoreUnavailable
from ._feed import Feed, LiveSession, Snapshot

_log: Final = logging.getLogger("mcp_sessions")
_encode: Final = msgspec.json.Encoder().encode

PAGE: Final = Path(__file__).with_name("inspector.html")


class Recorded(msgspec.Struct):
    """What the store has recorded."""

    live: int  # how many sessions are alive
    sessions: list[LiveSession]  # all of them, or none if they are too many to show


class SessionToEnd(msgspec.Struct):
    """A session that the page asks to end, as it was shown."""

    ref: Annotated[str, msgspec.Meta(pattern=r"^ses_[a-z2-7]{24}$")]
    created_at: Annotated[float, msgspec.Meta(gt=0)]  # Unix seconds
    expires_at: Annotated[int, msgspec.Meta(gt=0, lt=1 << 53)]  # Unix seconds


class State(msgspec.Struct):
    """What the page shows: what the worker that answers knows, and what the store has."""

    worker: Snapshot
    recorded: Recorded | None  # None if sessions are not recorded, or the store does not answer


ReadRecorded = Callable[[], Awaitable[Recorded | None]]
EndSession = Callable[[SessionToEnd], Awaitable[bool]]
_to_end: Final = msgspec.json.Decoder(SessionToEnd)


class Inspector:
    """The page of one middleware, as an ASGI application: `Telemetry(inspector=Inspector())`.

        inspector = Inspector()
        routes = [Mount("/inspector", inspector, middleware=[Middleware(AuthenticationMiddleware, ...)])]

    Whoever reaches it can end sessions, so mount it behind your own authentication. It shows the calls of all workers
    that answer it, and their sessions; with `tracked=True`, the sessions in the store.
    """

    def __init__(self) -> None:
        routes = [
            Route("/", self._page),
            Route("/state", self._state),
            Route("/end", self._end, methods=["POST"]),
        ]
        self._app: Final = Starlette(routes=routes)
        self._feed: Feed | None = None
        self.hosts: frozenset[str] | None = None  # that a request may name; None if the application checks them
        self.password: str | None = None

    def bind(self, feed: Feed, recorded: ReadRecorded, end: EndSession) -> None:
        """Show a middleware: its feed, the sessions in its store, and the function that ends one."""
        self._feed, self._read_recorded, self._end_session = feed, recorded, end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refused = _refused(Request(scope), self.hosts, self.password)
        await (self._app if refused is None else refused)(scope, receive, send)

    async def _page(self, _: Request) -> Response:
        body = await anyio.Path(PAGE).read_bytes()
        return Response(body, media_type="text/html", headers=_headers(body))

    async def _state(self, request: Request) -> Response:
        assert self._feed is not None, "the middleware binds it"
        state = State(self._feed.snapshot(), await self._read_recorded())
        headers = _headers()
        if request.scope.get("http_version") == "1.1":
            headers["Connection"] = "close"  # the next request may then reach another worker
        return Response(_encode(state), media_type="application/json", headers=headers)

    async def _end(self, request: Request) -> Response:
        """End the session that a request names."""
        try:
            session = _to_end.decode(await request.body())
        except ValueError:
            raise HTTPException(400) from None
        try:
            is_ended = await self._end_session(session)
        except StoreUnavailable:
            raise HTTPException(503) from None
        _log.info("the inspector %s session %s", "ended" if is_ended else "did not find", session.ref)
        return PlainTextResponse("ended" if is_ended else "not found", headers=_headers())


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
    """Serves an inspector on an address of this machine, by uvicorn. All workers listen on the same port."""

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

    async def run(self) -> None:
        """Serve until stopped."""

        class Server(self._uvicorn.Server):  # type: ignore[name-defined, misc]  # imported where it is needed
            @contextmanager
            def capture_signals(self) -> Iterator[None]:  # the application's own server handles them
                yield

        self._ended = anyio.Event()
        try:
            if (bound := self._bind()) is not None:
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

    def _bind(self) -> socket.socket | None:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        try:
            return socket.create_server((self._host, self._port), family=family, reuse_port=True)
        except OSError as error:
            _log.error("cannot start the inspector at %s:%d: %s", self._host, self._port, error.strerror)
            return None
