"""The SDK's messages, read and written in whichever of its forms they come.

SDK 1.x wraps a message in a root model and 2.x does not; 2.x carries HTTP headers beside it and 1.x does not. Nothing
here imports either: a message of our own is made in the image of one that the client sent. Messages are never changed
in place, since their parts are shared with the client.
Source: the MCP schema; the data-layer sessions draft; MCP 2026-07-28, Streamable HTTP, for envelope and headers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from .._protocol.jsonrpc import SESSION_KEY

CREATE: Final = "sessions/create"
DELETE: Final = "sessions/delete"
FORK: Final = "sessions/fork"
LIST: Final = "sessions/list"
END_ALL: Final = "sessions/end_all"
DISCOVER: Final = "server/discover"
INITIALIZE: Final = "initialize"
CANCELLED: Final = "notifications/cancelled"

_CAPABILITIES: Final = "io.modelcontextprotocol/clientCapabilities"
_CLIENT: Final = "io.modelcontextprotocol/clientInfo"
_ENVELOPE: Final = ("io.modelcontextprotocol/protocolVersion", _CAPABILITIES, _CLIENT)
_METHOD_HEADER: Final = "mcp-method"  # the SDK writes header names in lower case, and so they replace its own
_VERSION_HEADER: Final = "mcp-protocol-version"
_SESSION_HEADER: Final = "mcp-session-id"

CACHEABLE: Final = frozenset(
    ("tools/list", "prompts/list", "resources/list", "resources/templates/list", "resources/read")
)
"""What the SDK's client keeps, in a cache that does not know sessions."""


def body(item: Any) -> Any:
    """The JSON-RPC message in what the streams carry."""
    return getattr(item.message, "root", item.message)


def is_request(message: Any) -> bool:
    """Whether it asks for an answer."""
    return hasattr(message, "method") and hasattr(message, "id")


def is_answer(message: Any) -> bool:
    """Whether it is a result or an error."""
    return hasattr(message, "result") or hasattr(message, "error")


def key(message: Any) -> str:
    """A request and its answer by one name; clients take `7` and `"7"` for one, too."""
    return str(message.id)


def meta(message: Any) -> dict[str, Any]:
    """`params._meta`, empty where there is none."""
    return (message.params or {}).get("_meta") or {}


def is_modern(message: Any) -> bool:
    """Whether a request carries the envelope of the modern era."""
    return _CAPABILITIES in meta(message)


def cancelled(message: Any) -> str | None:
    """Which request a notification gives up, or None where it gives up none."""
    return str((message.params or {}).get("requestId")) if message.method == CANCELLED else None


def offers_sessions(result: Mapping[str, Any]) -> bool:
    """Whether a server's answer to the handshake or the discovery advertises sessions, in either place."""
    capabilities = result.get("capabilities") or {}
    return "sessions" in capabilities or "sessions" in (capabilities.get("experimental") or {})


def settings(result: Mapping[str, Any]) -> dict[str, Any]:
    """What such an answer says of sessions beyond that there are some: what is offered besides the draft."""
    experimental = (result.get("capabilities") or {}).get("experimental") or {}
    said = experimental.get("sessions")
    return said if isinstance(said, dict) else {}


def declaring(item: Any) -> Any:
    """The request, which also says that this client knows sessions, where it says what the client knows."""
    message = body(item)
    if message.method == INITIALIZE:
        params = message.params or {}
        return _with(item, params={**params, "capabilities": _declared(params.get("capabilities"))})
    if is_modern(message):
        return _with_meta(item, {_CAPABILITIES: _declared(meta(message)[_CAPABILITIES])})
    return item


def introduction(message: Any) -> dict[str, Any]:
    """What a handshake says the client is, as the modern era says it in each request; empty for other messages.

    A server that keeps nothing of the handshake learns of it where a session is created.
    """
    said = (message.params or {}).get("clientInfo") if message.method == INITIALIZE else None
    return {} if said is None else {_CLIENT: said}


def in_session(item: Any, sent: dict[str, str]) -> Any:
    """The request within a session, its id mirrored in the header where nothing else holds that."""
    carrying = _with_meta(item, {SESSION_KEY: sent})
    return replace(carrying, metadata=_mirrored(item.metadata, sent["sessionId"]))


def request(pattern: Any, id: str, method: str, params: Mapping[str, Any], sent: dict[str, str] | None) -> Any:
    """A request of our own.

    Args:
        pattern: A request of the client, whose envelope and headers ours has, too.
        id: The JSON-RPC id.
        method: What is asked.
        params: `params`; its `_meta` may say what the envelope says, where there is none.
        sent: The session that it is about, or None.
    """
    like = body(pattern)
    envelope = {name: meta(like)[name] for name in _ENVELOPE if name in meta(like)}
    carried = {**params, "_meta": envelope} if envelope else dict(params)
    made = type(like)(jsonrpc="2.0", id=id, method=method, params=carried)
    plain = replace(pattern, message=_wrapped(pattern, made), metadata=_own_headers(pattern.metadata, method))
    return plain if sent is None else in_session(plain, sent)


def success(item: Any, method: str, *, carried: bool) -> Any:
    """A result as the client gets it: without what we asked for, and not to be kept where it depends on a session.

    Args:
        item: The answer.
        method: What it answers.
        carried: Whether we put a session into the request, so that the session in the result is for us.
    """
    result = dict(body(item).result)
    if carried and isinstance(result.get("_meta"), dict):
        result["_meta"] = {name: value for name, value in result["_meta"].items() if name != SESSION_KEY}
    if method in CACHEABLE:
        result |= {"ttlMs": 0, "cacheScope": "private"}
    return _with(item, result=result)


def without_id(item: Any) -> Any:
    """The error that a session was not found, without the id: the client never had it, and errors get logged."""
    error = body(item).error
    data = {name: value for name, value in error.data.items() if name != "sessionId"}
    return _with(item, error=error.model_copy(update={"data": data}))


def _declared(capabilities: Any) -> dict[str, Any]:
    known = capabilities or {}
    experimental = known.get("experimental") or {}
    return {**known, "experimental": {**experimental, "sessions": experimental.get("sessions") or {}}}


def _with_meta(item: Any, members: dict[str, Any]) -> Any:
    message = body(item)
    return _with(item, params={**(message.params or {}), "_meta": {**meta(message), **members}})


def _with(item: Any, **members: Any) -> Any:
    return replace(item, message=_wrapped(item, body(item).model_copy(update=members)))


def _wrapped(item: Any, message: Any) -> Any:
    return type(item.message)(message) if hasattr(item.message, "root") else message


def _mirrored(metadata: Any, session_id: str) -> Any:
    # Handshake-era headers may hold the transport's own session, which the streams do not show.
    headers = getattr(metadata, "headers", None) or {}
    return (
        replace(metadata, headers={**headers, _SESSION_HEADER: session_id}) if _METHOD_HEADER in headers else metadata
    )


def _own_headers(metadata: Any, method: str) -> Any:
    headers = getattr(metadata, "headers", None)
    if headers is None:
        return None
    about = {_METHOD_HEADER: method} if _METHOD_HEADER in headers else {}
    return type(metadata)(headers={name: headers[name] for name in (_VERSION_HEADER,) if name in headers} | about)
