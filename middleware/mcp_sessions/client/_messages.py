"""The SDK's messages, read and written in the forms of both of its generations.

SDK 1.x wraps a message in a root model, and 2.x carries HTTP headers beside it. Neither is imported: a message of our
own is made in the image of one that the client sent. None is changed in place, since the client shares its parts.
Sources: the MCP schema; the data-layer sessions draft; MCP 2026-07-28, Streamable HTTP.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any, Final

from .._protocol.jsonrpc import CLIENT_CAPABILITIES_KEY, CLIENT_INFO_KEY, PROTOCOL_VERSION_KEY, SESSION_KEY
from .._protocol.methods import INITIALIZE

FORK: Final = "sessions/fork"
LIST: Final = "sessions/list"
CACHEABLE: Final = frozenset(
    ("tools/list", "prompts/list", "resources/list", "resources/templates/list", "resources/read")
)
"""What the SDK's client keeps in a cache that does not know sessions."""

_ENVELOPE: Final = (PROTOCOL_VERSION_KEY, CLIENT_CAPABILITIES_KEY, CLIENT_INFO_KEY)
_METHOD_HEADER: Final = "mcp-method"  # the SDK writes header names in lower case, and so they replace the SDK's
_VERSION_HEADER: Final = "mcp-protocol-version"
_SESSION_HEADER: Final = "mcp-session-id"


def body(item: Any) -> Any:
    """Return the JSON-RPC message in what the streams carry."""
    return getattr(item.message, "root", item.message)


def is_answer(message: Any) -> bool:
    return hasattr(message, "result") or hasattr(message, "error")


def key(message: Any) -> str:
    """Return the id that a request and its answer share; to clients `7` and `"7"` are one."""
    return str(message.id)


def meta(message: Any) -> dict[str, Any]:
    """Return `params._meta`, empty if it is missing."""
    return (message.params or {}).get("_meta") or {}


def members(value: object) -> dict[str, Any]:
    """Return an object that a server sent, empty for any other value."""
    return value if isinstance(value, dict) else {}


def is_modern(message: Any) -> bool:
    """Whether a request carries the envelope of the modern era."""
    return CLIENT_CAPABILITIES_KEY in meta(message)


def cancelled_id(message: Any) -> str | None:
    """Return the id of the request that a notification cancels, or None for any other message."""
    if getattr(message, "method", None) != "notifications/cancelled":
        return None
    return str((message.params or {}).get("requestId"))


def offer(result: Mapping[str, Any]) -> tuple[bool, dict[str, Any]]:
    """Return whether the answer to a handshake offers sessions, in either place, and which extensions of the draft."""
    capabilities = members(result.get("capabilities"))
    experimental = members(capabilities.get("experimental"))
    offered = "sessions" in capabilities or "sessions" in experimental
    return offered, members(experimental.get("sessions"))


def declaring_sessions(item: Any) -> Any:
    """Return the request with sessions among the client's capabilities, where it carries those."""
    message = body(item)
    if message.method == INITIALIZE:
        params = message.params or {}
        return _replaced(item, params={**params, "capabilities": _with_sessions(params.get("capabilities"))})
    if is_modern(message):
        return _with_meta(item, {CLIENT_CAPABILITIES_KEY: _with_sessions(meta(message)[CLIENT_CAPABILITIES_KEY])})
    return item


def client_info(message: Any) -> dict[str, Any]:
    """Return the client's name of a handshake as the modern era's `_meta` holds it; empty for other messages.

    A server that keeps nothing of the handshake learns it where a session is created.
    """
    info = (message.params or {}).get("clientInfo") if message.method == INITIALIZE else None
    return {} if info is None else {CLIENT_INFO_KEY: info}


def in_session(item: Any, session: dict[str, str]) -> Any:
    """Return the request within a session, its id mirrored in the header where nothing else holds that."""
    within = _with_meta(item, {SESSION_KEY: session})
    headers = getattr(item.metadata, "headers", None) or {}
    if _METHOD_HEADER not in headers:  # handshake-era headers may hold the transport's own session, unseen here
        return within
    return replace(within, metadata=replace(item.metadata, headers={**headers, _SESSION_HEADER: session["sessionId"]}))


def request(template: Any, id: str, method: str, params: Mapping[str, Any], session: dict[str, str] | None) -> Any:
    """Return a request of our own, with the envelope and headers of one of the client's and the trace context."""
    like = body(template)
    envelope = {name: meta(like)[name] for name in _ENVELOPE if name in meta(like)}
    own = (envelope or members(params.get("_meta"))) | _trace_context()
    whole = {**params, "_meta": own} if own else dict(params)
    message = _wrapped(template, type(like)(jsonrpc="2.0", id=id, method=method, params=whole))
    headers = getattr(template.metadata, "headers", None)
    metadata = None
    if headers is not None:
        own_headers = {name: headers[name] for name in (_VERSION_HEADER,) if name in headers}
        own_headers |= {_METHOD_HEADER: method} if _METHOD_HEADER in headers else {}
        metadata = type(template.metadata)(headers=own_headers)
    item = replace(template, message=message, metadata=metadata)
    return item if session is None else in_session(item, session)


def result_for_client(item: Any, *, cacheable: bool, had_session: bool) -> Any:
    """Return a result without the session that answers ours, and not to be cached where it could be."""
    result = dict(body(item).result)
    if had_session and isinstance(result.get("_meta"), dict):
        result["_meta"] = {name: value for name, value in result["_meta"].items() if name != SESSION_KEY}
    if cacheable:
        result |= {"ttlMs": 0, "cacheScope": "private"}
    return _replaced(item, result=result)


def without_id(item: Any) -> Any:
    """Return the error of a lost session without the id: the client never had it, and errors get logged."""
    error = body(item).error
    data = {name: value for name, value in error.data.items() if name != "sessionId"}
    return _replaced(item, error=error.model_copy(update={"data": data}))


def _trace_context() -> dict[str, Any]:
    carrier: dict[str, Any] = {}
    if "opentelemetry.context" in sys.modules:
        import_module("opentelemetry.propagate").inject(carrier)
    return carrier


def _with_sessions(capabilities: Any) -> dict[str, Any]:
    known = capabilities or {}
    experimental = known.get("experimental") or {}
    return {**known, "experimental": {**experimental, "sessions": experimental.get("sessions") or {}}}


def _with_meta(item: Any, members: dict[str, Any]) -> Any:
    message = body(item)
    return _replaced(item, params={**(message.params or {}), "_meta": {**meta(message), **members}})


def _replaced(item: Any, **members: Any) -> Any:
    return replace(item, message=_wrapped(item, body(item).model_copy(update=members)))


def _wrapped(item: Any, message: Any) -> Any:
    return type(item.message)(message) if hasattr(item.message, "root") else message
