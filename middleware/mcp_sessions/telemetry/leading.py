"""Trace context for handlers that run elsewhere than their message came in.

In the stateful mode of SDK 1.x, and so of FastMCP 3, a handler runs in a task of its connection, where what is current
is what was when the connection began: what it starts would hang below another message's span, or none. So each handler
of such a server is led by its request, whose ASGI scope says what was current when the message came. That is done once,
at the first message of a process that traces, and for handlers that the server has by then.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Final

from opentelemetry import context as contexts
from opentelemetry.context import Context, create_key, get_value, set_value

from ..current import framework_scope

TRACE: Final = "mcp_sessions.trace"
"""Where a scope says what was current when its message came."""
_SDK: Final = "mcp.server.lowlevel.server"
_LED: Final = "__led_by_mcp_sessions__"
_MESSAGE: Final = create_key("mcp_sessions.message")

Handler = Callable[[Any], Awaitable[Any]]


def lead(servers: Iterable[object]) -> bool:
    """Let the handlers of servers find the trace context of their own message.

    Args:
        servers: The servers behind the endpoint, as `instrumented` finds them.

    Returns:
        Whether there are any that need it, so that `place` has to be called.
    """
    if not hasattr(sys.modules.get(_SDK), "request_ctx"):  # SDK 2.x, whose handlers run where their messages come in
        return False
    tables = [table for server in servers if isinstance(table := getattr(server, "request_handlers", None), dict)]
    for table in tables:
        table.update({kind: _led(handler) for kind, handler in table.items() if not hasattr(handler, _LED)})
    return bool(tables)


def place(scope: MutableMapping[str, Any]) -> None:
    """Say on a request's scope what is current now."""
    scope[TRACE] = set_value(_MESSAGE, object())


def _led(handler: Handler) -> Handler:
    @functools.wraps(handler)
    async def led(request: Any) -> Any:
        kept: Context | None = (framework_scope() or {}).get(TRACE)
        # A handler may call another one; then what is current belongs to this message already.
        if kept is None or get_value(_MESSAGE) is get_value(_MESSAGE, kept):
            return await handler(request)
        token = contexts.attach(kept)
        try:
            return await handler(request)
        finally:
            contexts.detach(token)

    setattr(led, _LED, True)
    return led
