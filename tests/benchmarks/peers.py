"""What others put around an ASGI application, each as its documentation shows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.trace import TracerProvider
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from . import apps
from .ours import SECRET
from .traffic import Visits, message

READ: Final = "Starlette SessionMiddleware, read"
WRITE: Final = "Starlette SessionMiddleware, read and write"


async def _do_nothing(request: Request, call_next: RequestResponseEndpoint) -> Response:
    return await call_next(request)


def _open_telemetry(app: ASGIApp, **options: Any) -> ASGIApp:
    wrapped: ASGIApp = OpenTelemetryMiddleware(
        app, tracer_provider=TracerProvider(), meter_provider=NoOpMeterProvider(), **options
    )
    return wrapped


def instrumented(app: ASGIApp) -> ASGIApp:
    """Put OpenTelemetry's HTTP instrumentation around an application, with the tracer provider of the process."""
    wrapped: ASGIApp = OpenTelemetryMiddleware(app, exclude_spans=["receive", "send"])
    return wrapped


PEERS: Final[dict[str, Callable[[ASGIApp], ASGIApp]]] = {
    "BaseHTTPMiddleware, empty": lambda app: BaseHTTPMiddleware(app, _do_nothing),
    "OpenTelemetry ASGI, default": _open_telemetry,
    "OpenTelemetry ASGI, one span": lambda app: _open_telemetry(app, exclude_spans=["receive", "send"]),
}


def cookies(app: ASGIApp) -> ASGIApp:
    """Put Starlette's own sessions, in a signed cookie, around an application."""
    return SessionMiddleware(app, secret_key=SECRET)


async def cookie() -> dict[str, str]:
    """Return the header with which a client sends such a session back."""
    answer = await Visits.of(cookies(apps.cookie_writing), message()).answer()
    return {"cookie": answer.headers[b"set-cookie"].split(b";")[0].decode()}
