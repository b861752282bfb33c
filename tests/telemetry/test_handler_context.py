"""Handlers of SDK 1.x run in the context of their own message, though they run in a task of their connection.

`tests/integration/test_session_spans.py` shows on every framework what that is good for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
from environments import needs
from opentelemetry import context
from opentelemetry.trace import NonRecordingSpan, SpanContext, get_current_span, set_span_in_context

from mcp_sessions._protocol.headers import RequestHeaders
from mcp_sessions._protocol.jsonrpc import parse
from mcp_sessions._server.routing import reachable
from mcp_sessions.telemetry._attributes import KnownNames
from mcp_sessions.telemetry._frameworks import SCOPE_KEY, wrap_handlers
from mcp_sessions.telemetry._outcome import RequestTelemetry
from mcp_sessions.telemetry._recorder import Telemetry

pytestmark = needs("mcp<2")


def span_id() -> int:
    return get_current_span().get_span_context().span_id


@contextmanager
def current(number: int) -> Iterator[None]:
    token = context.attach(set_span_in_context(NonRecordingSpan(SpanContext(1, number, is_remote=False))))
    yield
    context.detach(token)


@contextmanager
def handling(scope: dict[str, Any]) -> Iterator[None]:
    variable = import_module("mcp.server.lowlevel.server").request_ctx
    token = variable.set(SimpleNamespace(request=SimpleNamespace(scope=scope)))
    yield
    variable.reset(token)


def called() -> RequestTelemetry:
    """A message that came in the current context."""
    sent = parse(b'{"jsonrpc":"2.0","method":"ping"}')
    return RequestTelemetry(message=sent, target=None, known=KnownNames(), context=context.get_current())


def server() -> Any:
    async def where(request: object) -> int:
        return span_id()

    async def ask(request: object) -> Any:
        with current(0xB):
            return await made.request_handlers[int](request)

    made = import_module("mcp.server.lowlevel").Server("small")
    made.request_handlers = {int: where, str: ask}
    return made


async def test_a_handler_runs_where_its_message_came_in() -> None:
    made, scope = server(), dict[str, Any]()
    assert wrap_handlers([made])
    with current(0xA):
        scope[SCOPE_KEY] = called()
    with current(0xC), handling(scope):
        assert await made.request_handlers[int](None) == 0xA
        assert span_id() == 0xC


async def test_a_handler_that_another_one_calls_stays_below_it() -> None:
    """As the SDK's own does, which asks for the list of tools before it calls one."""
    made, scope = server(), dict[str, Any]()
    wrap_handlers([made])
    with current(0xA):
        scope[SCOPE_KEY] = called()
    with handling(scope):
        assert await made.request_handlers[str](None) == 0xB


async def test_without_a_message_of_ours_the_context_stays() -> None:
    """A server that is called in its own process, or through an application that is not wrapped."""
    made = server()
    wrap_handlers([made])
    with current(0xC):
        assert await made.request_handlers[int](None) == 0xC
        with handling({}):
            assert await made.request_handlers[int](None) == 0xC


def test_handlers_are_wrapped_once() -> None:
    made = server()
    assert wrap_handlers([made, object()])
    handlers = dict(made.request_handlers)
    assert wrap_handlers([made])
    assert made.request_handlers == handlers
    assert not wrap_handlers([object()])


@pytest.mark.parametrize(("method", "stores"), [("tools/call", True), ("initialize", False)])
def test_the_scope_that_begins_a_connection_holds_no_context(method: str, stores: bool) -> None:
    """Servers keep it for as long as the connection lasts, and would keep the context with it."""
    app = import_module("mcp.server.fastmcp").FastMCP("small").streamable_http_app()
    options: dict[str, Any] = {"spans": "enrich", "trace": "request", "metrics": None, "redact": None, "feed": None}
    telemetry, scope = Telemetry(partial(reachable, app, "/mcp"), **options), dict[str, Any]()
    message = parse(b'{"jsonrpc":"2.0","id":1,"method":"%b"}' % method.encode())
    request = telemetry.begin(message, RequestHeaders([]), scope, None)
    assert request is not None
    request.end()
    assert (SCOPE_KEY in scope) is stores
