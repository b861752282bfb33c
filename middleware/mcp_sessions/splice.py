"""Writing into JSON-RPC messages without touching what others wrote.

Objects are taken apart into names and value slices, changed, and joined again: a value that is not
ours keeps its exact bytes, since a JSON round trip would change 1e400, 2^64 and escapes. Nothing
here refuses: an answer that cannot be read is not ours to judge, and the caller sends it as it was.
Sources: the data-layer sessions draft (2026-02-23); JSON-RPC 2.0 section 5; MCP 2026-07-28 for cache hints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Raw

from .errors import Refusal
from .jsonrpc import SESSION_KEY, Message
from .members import join, last_members, string

ENVELOPE_PREFIX: Final = "io.modelcontextprotocol/"
_NOTHING: Final = Raw()


def answers(members: Mapping[str, Raw], request_id: bytes) -> bool:
    """Whether a message is the success that answers a request.

    Args:
        members: The members of a JSON-RPC message.
        request_id: JSON text of the request's id.
    """
    if "result" not in members or "method" in members or "id" not in members:
        return False
    return same_id(members["id"], request_id)


def is_answer(text: bytes, request_id: bytes) -> bool:
    """Whether a text is the success that answers a request; what cannot be read is not.

    Args:
        text: A JSON-RPC message of the server.
        request_id: JSON text of the request's id.
    """
    try:
        return answers(last_members(text), request_id)
    except Refusal:
        return False


def same_id(left: bytes, right: bytes) -> bool:
    """Whether two ids are one, however their characters are escaped.

    Args:
        left: JSON text of an id, as it stands in a message.
        right: JSON text of the id that it may be.
    """
    if bytes(left) == right:
        return True
    try:
        text = string(left)
        return text is not None and text == string(right)
    except Refusal:
        return False


def echo(response: bytes, request_id: bytes, session: Callable[[], bytes]) -> bytes | None:
    """The answer with the session merged into `result._meta`.

    A result with cache hints becomes private and stale at once: client caches do not know sessions,
    so what one session was told would be served to another.

    Args:
        response: A JSON-RPC message of the server.
        request_id: JSON text of the request's id.
        session: Gives the JSON text of the session's metadata; called only for that answer, since
            giving it closes the session's state.

    Returns:
        The new message, or None where the response is not the success that answers the request.
    """
    try:
        envelope: dict[str, Any] = last_members(response)
        if not answers(envelope, request_id):
            return None
        result: dict[str, Any] = last_members(envelope["result"])
        envelope["result"] = result
        if "cacheScope" in result or "ttlMs" in result:
            result["cacheScope"], result["ttlMs"] = "private", 0
        meta = _inner(result, "_meta")
    except Refusal:
        return None
    meta[SESSION_KEY] = Raw(session())
    return join(envelope)


def advertise(response: bytes, request_id: bytes, settings: bytes) -> bytes | None:
    """The answer to `initialize` or `server/discover` with sessions among its capabilities.

    Args:
        response: A JSON-RPC message of the server.
        request_id: JSON text of the request's id.
        settings: JSON text for `capabilities.experimental.sessions`.

    Returns:
        The new message, or None where the response is not the success that answers the request.
    """
    try:
        envelope: dict[str, Any] = last_members(response)
        if not answers(envelope, request_id):
            return None
        result: dict[str, Any] = last_members(envelope["result"])
        envelope["result"] = result
        capabilities = _inner(result, "capabilities")
        capabilities["sessions"] = {}
        _inner(capabilities, "experimental")["sessions"] = Raw(settings)
    except Refusal:
        return None
    return join(envelope)


def without_session(message: Message, key: str) -> bytes:
    """The message with one member of `_meta` taken out; an empty `_meta` stays.

    Args:
        message: A message as `jsonrpc.parse` gives it.
        key: The name of the member.
    """
    if message.meta is None or key not in message.meta:
        return message.body
    envelope = last_members(message.body)
    meta = {name: value for name, value in message.meta.items() if name != key}
    return join({**envelope, "params": {**last_members(envelope["params"]), "_meta": meta}})


def with_meta(body: bytes, name: str, value: str) -> bytes:
    """A request or notification with one member of `params._meta` set.

    Args:
        body: The message, with members that were found to be objects where objects belong.
        name: The member.
        value: Its text.
    """
    envelope: dict[str, Any] = last_members(body)
    envelope["params"] = params = _inner(envelope, "params")
    _inner(params, "_meta")[name] = value
    return join(envelope)


def result(request_id: bytes, result: Mapping[str, Any]) -> bytes:
    """A success of our own.

    Args:
        request_id: JSON text of the request's id.
        result: Its members, as JSON values.
    """
    return join({"jsonrpc": "2.0", "id": Raw(request_id), "result": dict(result)})


def error(request_id: bytes | None, code: int, message: str, data: Mapping[str, Any] | None = None) -> bytes:
    """An error of our own.

    Args:
        request_id: JSON text of the request's id; None where it is not known, and null is sent.
        code: JSON-RPC error code.
        message: What the client is told; it may be the application's own words, so a lone surrogate becomes `?`.
        data: Members of `error.data`; None leaves it out.
    """
    told = {"code": code, "message": message.encode(errors="replace").decode()}
    more = {} if data is None else {"data": dict(data)}
    return join({"jsonrpc": "2.0", "id": Raw(request_id or b"null"), "error": {**told, **more}})


def ping(message: Message, request_id: bytes, method: str, drop: str) -> bytes:
    """A question in the name of the one who sent a message: the same envelope, and nothing of what was asked.

    Args:
        message: What the client sent.
        request_id: JSON text of the question's id.
        method: The question: `ping` or `server/discover`.
        drop: The envelope member that is ours and stays behind.
    """
    sent = (message.meta or {}).items()
    meta = {name: value for name, value in sent if name.startswith(ENVELOPE_PREFIX) and name != drop}
    params = {"params": {"_meta": meta}} if meta else {}
    return join({"jsonrpc": "2.0", "id": Raw(request_id), "method": method, **params})


def _inner(members: dict[str, Any], name: str) -> dict[str, Any]:
    """The object that stands there, taken apart in its place; an empty one where none stands."""
    value = members.get(name, _NOTHING)
    members[name] = inner = last_members(value) if bytes(value).startswith(b"{") else {}
    return inner
