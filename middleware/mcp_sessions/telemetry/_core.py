"""What the server needs of telemetry without OpenTelemetry: the options' values, and the session whose hook runs."""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, Final, Literal, NamedTuple, ParamSpec, TypeVar

import anyio

from .._session.claims import Correlation, Principal

P = ParamSpec("P")
T = TypeVar("T")
MAX_NAME: Final = 128  # characters; the protocol's own limit for a tool's name

Spans = Literal["auto", "message", "enrich", "off"]
"""`"auto"`: one server span for each message: that of an HTTP instrumentation or of the wrapped server if there is one,
else one of the middleware; `"message"`: one of the middleware in any case, unless the wrapped server makes one;
`"enrich"`: none, the attributes go on the span around; `"off"`: no span at all."""

Trace = Literal["request", "session"]
"""`"request"`: a message belongs to its caller's trace and links to the session's start; `"session"`: it belongs
to the session's trace, and links to its caller."""

Content = Literal["arguments", "result", "error"]

Redact = Callable[[Content, str, Any], Any]
"""Called with the content's kind, the tool's name and the value; returns what may be written, or None for nothing."""

User = Callable[[Principal], "str | None"]
"""Called with the principal of a request; returns what of it may be written as `user.id`, or None for nothing."""

START_TRACE: Final = "mcp_sessions.start"
"""The traceparent of the start of a log record's session, on the record."""


class Hook(NamedTuple):
    """The session whose hook runs, whatever request is handled meanwhile."""

    ref: str
    trace: str | None  # the traceparent of its start


running_hook: Final[ContextVar[Hook | None]] = ContextVar("mcp_running_hook", default=None)


@contextmanager
def hook(ref: str, trace: str | None = None) -> Iterator[None]:
    """Let spans and log records within the block belong to a session whose hook runs."""
    token = running_hook.set(Hook(ref, trace))
    try:
        yield
    finally:
        running_hook.reset(token)


_failed: Final = set[str]()  # observers that have raised, and what
_log: Final = logging.getLogger("mcp_sessions")


_STOPS: Final = (KeyboardInterrupt, SystemExit, GeneratorExit)
"""What ends the process, whoever raises it."""


def call_observer(observer: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """Call a part of an observer, which changes nothing for clients: what it raises is logged once."""
    try:
        return function(*args, **kwargs)
    except _STOPS:
        raise
    except BaseException as error:  # noqa: BLE001  # also `CancelledError`: a plain function is never cancelled itself
        failure = f"{observer} raised {type(error).__name__}"
        if failure not in _failed:
            _failed.add(failure)
            _log.exception("%s: the event is lost there, and requests go on; correct it (logged once)", failure)
        return None


def harmless(method: Callable[P, T]) -> Callable[P, T | None]:
    """Return a method of telemetry that returns None where it would raise."""

    @wraps(method)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> T | None:
        return call_observer("telemetry", method, *args, **kwargs)

    return guarded


def is_traced() -> bool:
    """Whether spans go anywhere: the process has a tracer provider that is more than one of the API's stand-ins.

    A provider may be set at any time, so no answer is cached. Others have classes of the same names.
    """
    api = sys.modules.get("opentelemetry.trace")
    return api is not None and type(api.get_tracer_provider()).__module__ != api.__name__


FLUSH_TIMEOUT: Final = 5.0  # seconds that a server's stop waits for exporters


async def flush_exporters() -> None:
    """Export the spans and metrics that the process's providers still hold.

    Servers such as uvicorn end by the signal that stopped them, so no `atexit` handler of OpenTelemetry runs.
    """
    for module, getter in (
        ("opentelemetry.trace", "get_tracer_provider"),
        ("opentelemetry.metrics", "get_meter_provider"),
    ):
        api = sys.modules.get(module)
        force_flush = None if api is None else getattr(getattr(api, getter)(), "force_flush", None)
        if force_flush is not None:
            with anyio.move_on_after(FLUSH_TIMEOUT):
                await anyio.to_thread.run_sync(call_observer, "telemetry", force_flush, abandon_on_cancel=True)


def attributes_of(correlation: Correlation) -> dict[str, str]:
    """Return the attributes of a client's conversation label."""
    return {"mcp_sessions.correlation": correlation.id, "mcp_sessions.correlation.source": correlation.source}
