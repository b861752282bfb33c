"""What others put around an ASGI application, each as its documentation shows it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import jwt
from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.trace import TracerProvider
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from . import apps
from .ours import SECRET
from .traffic import SESSION_KEY, Visits, message

READ: Final = "Starlette SessionMiddleware, read"
WRITE: Final = "Starlette SessionMiddleware, read and write"
SPANS: Final = "OpenTelemetry ASGI, default"
NAIVE: Final = "naive PyJWT and json"
_NAME: Final = "mcp-sessions"
TOKEN: Final = jwt.encode(
    {"iss": _NAME, "aud": _NAME, "jti": "0123456789abcdefghijkl", "exp": 4_000_000_000},
    SECRET,
    "HS256",
    headers={"kid": "01234567"},
)


class Naive:
    """Sessions as one writes them in an afternoon: the whole body read and written by `json`, PyJWT each time."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        first = await receive()
        metadata = json.loads(first["body"])["params"]["_meta"][SESSION_KEY]
        scope["claims"] = jwt.decode(
            metadata["sessionId"],
            SECRET,
            algorithms=["HS256"],
            audience=_NAME,
            issuer=_NAME,
            options={"require": ["exp", "jti"]},
        )
        start: Message = {}

        async def replay() -> Message:
            return first

        async def add(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                start = message
                return
            answer = json.loads(message["body"])
            answer["result"].setdefault("_meta", {})[SESSION_KEY] = metadata
            body = json.dumps(answer).encode()
            headers = [(name, value) for name, value in start["headers"] if name != b"content-length"]
            await send({**start, "headers": [*headers, (b"content-length", str(len(body)).encode())]})
            await send({"type": "http.response.body", "body": body})

        await self.app(scope, replay, add)


async def _do_nothing(request: Request, call_next: RequestResponseEndpoint) -> Response:
    return await call_next(request)


def _open_telemetry(app: ASGIApp, **options: Any) -> ASGIApp:
    wrapped: ASGIApp = OpenTelemetryMiddleware(
        app, tracer_provider=TracerProvider(), meter_provider=NoOpMeterProvider(), **options
    )
    return wrapped


PEERS: Final[dict[str, Callable[[ASGIApp], ASGIApp]]] = {
    "BaseHTTPMiddleware, empty": lambda app: BaseHTTPMiddleware(app, _do_nothing),
    SPANS: _open_telemetry,
    "OpenTelemetry ASGI, one span": lambda app: _open_telemetry(app, exclude_spans=["receive", "send"]),
}


def cookies(app: ASGIApp) -> ASGIApp:
    """Put Starlette's own sessions, in a signed cookie, around an application."""
    return SessionMiddleware(app, secret_key=SECRET)


async def cookie() -> dict[str, str]:
    """Return the header with which a client sends such a session back."""
    answer = await Visits.of(cookies(apps.cookie_writing), message()).answer()
    return {"cookie": answer.headers[b"set-cookie"].split(b";")[0].decode()}
