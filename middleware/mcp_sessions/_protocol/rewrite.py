"""Writing into JSON-RPC messages without touching what others wrote.

Objects are taken apart into names and value slices, changed, and joined again: a value that is not
ours keeps its exact bytes, since a JSON round trip would change 1e400, 2^64 and escapes. Nothing
here refuses: an answer that cannot be read is not ours to judge, and the caller sends it as it was.
Sources: the data-layer sessions draft (2026-02-23); JSON-RPC 2.0 section 5; MCP 2026-07-28 for cache hints.

The session appended to an answer that is written as nearly every server writes it.

Such an answer holds `jsonrpc`, `id` and `result` in this order and nothing else, compact or with the spaces of
Python's `json`; its result has no cache hints, and `_meta` comes last in it or not at all. It need not be taken
apart: the session goes before its last braces, and all bytes of the server stay. That these braces close what
they seem to close is proved each time, and never guessed from a name that is found somewhere. Any other answer
is left to `splice`. Sources: RFC 8259; the data-layer sessions draft (2026-02-23).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Raw

from ..errors import Refusal
from .jsonrpc import SESSION_KEY, Message
from .strict_json import FLAWS, join, last_members, read_object, string

ENVELOPE_PREFIX: Final = "io.modelcontextprotocol/"
_NOTHING: Final = Raw()
_WITH_METHOD: Final = (b'{"jsonrpc":"2.0","method":', b'{"jsonrpc": "2.0", "method":', b'{"method":')
"""How notifications begin, and some requests: with a method no message is an answer, whatever else it holds."""


def answers(members: Mapping[str, Raw], request_id: bytes) -> bool:
    """Whether a message is the success that answers a request.

    Args:
        members: The members of a JSON-RPC message.
        request_id: JSON text of the request's id.
    """
    if "result" not in members or "method" in members or "id" not in members:
        return False
    return same_id(members["id"], request_id)


def _answer(text: bytes, request_id: bytes) -> dict[str, Any] | None:
    """The members of a message of the server, or None where it is not the success that answers a request.

    Raises:
        Refusal: It cannot be read.
    """
    if text.startswith(_WITH_METHOD):
        return None
    envelope = last_members(text)
    return envelope if answers(envelope, request_id) else None


def is_answer(text: bytes, request_id: bytes) -> bool:
    """Whether a text is the success that answers a request; what cannot be read is not.

    Args:
        text: A JSON-RPC message of the server.
        request_id: JSON text of the request's id.
    """
    try:
        return _answer(text, request_id) is not None
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
    appended = append(response, request_id, session)
    return _echo(response, request_id, session) if appended is None else appended


def _echo(response: bytes, request_id: bytes, session: Callable[[], bytes]) -> bytes | None:
    """As `echo`, for an answer of any form."""
    try:
        envelope = _answer(response, request_id)
        if envelope is None:
            return None
        result: dict[str, Any] = last_members(envelope["result"])
        envelope["result"] = result
        _mark_stale(result)
        meta = _inner(result, "_meta")
    except Refusal:
        return None
    meta[SESSION_KEY] = Raw(session())
    return join(envelope)


def advertise(response: bytes, request_id: bytes, settings: bytes, capability: bytes = b"{}") -> bytes | None:
    """The answer to `initialize` or `server/discover` with sessions among its capabilities.

    Args:
        response: A JSON-RPC message of the server.
        request_id: JSON text of the request's id.
        settings: JSON text for `capabilities.experimental.sessions`.
        capability: JSON text for `capabilities.sessions`.

    Returns:
        The new message, or None where the response is not the success that answers the request.
    """
    try:
        envelope = _answer(response, request_id)
        if envelope is None:
            return None
        result: dict[str, Any] = last_members(envelope["result"])
        envelope["result"] = result
        capabilities = _inner(result, "capabilities")
        capabilities["sessions"] = Raw(capability)
        _inner(capabilities, "experimental")["sessions"] = Raw(settings)
    except Refusal:
        return None
    return join(envelope)


def without_session(message: Message) -> bytes:
    """The message with the session taken out of `_meta`; an empty `_meta` stays.

    Args:
        message: A message as `jsonrpc.parse` gives it.
    """
    if message.meta is None or SESSION_KEY not in message.meta:
        return message.body
    envelope = last_members(message.body)
    meta = {name: value for name, value in message.meta.items() if name != SESSION_KEY}
    return join({**envelope, "params": {**last_members(envelope["params"]), "_meta": meta}})


def with_field(response: bytes, request_id: bytes, session_id: str) -> bytes | None:
    """The answer with its session in the top-level `sessionId` of SEP-1364.

    A result with cache hints becomes private and stale at once, as with `echo`.

    Args:
        response: A JSON-RPC message of the server.
        request_id: JSON text of the request's id.
        session_id: The session's id.

    Returns:
        The new message, or None where the response is not the success that answers the request.
    """
    try:
        envelope = _answer(response, request_id)
        if envelope is None:
            return None
        result: dict[str, Any] = last_members(envelope["result"])
    except Refusal:
        return None
    if _mark_stale(result):
        envelope["result"] = result
    envelope["sessionId"] = session_id
    return join(envelope)


def _mark_stale(result: dict[str, Any]) -> bool:
    """Whether a result had cache hints, which now say that it must not be kept."""
    has_hints = "cacheScope" in result or "ttlMs" in result
    if has_hints:
        result["cacheScope"], result["ttlMs"] = "private", 0
    return has_hints


def without_field(body: bytes) -> bytes:
    """A message without the top-level `sessionId` of SEP-1364, which servers need not know."""
    return join({name: value for name, value in last_members(body).items() if name != "sessionId"})


def with_capabilities(body: bytes) -> bytes:
    """An `initialize` that states the capabilities of its client, where it stated none: none at all.

    Args:
        body: The message, with an object for `params` or none.
    """
    envelope: dict[str, Any] = last_members(body)
    params = _inner(envelope, "params")
    if bytes(params.get("capabilities", b"null")) != b"null":
        return body
    params["capabilities"] = {}
    return join(envelope)


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


def notification(method: str) -> bytes:
    """A notification of our own."""
    return join({"jsonrpc": "2.0", "method": method})


def ping(message: Message, request_id: bytes, method: str) -> bytes:
    """A question in the name of who sent a message: its envelope without the session, and nothing that was asked.

    Args:
        message: What the client sent.
        request_id: JSON text of the question's id.
        method: The question: `ping` or `server/discover`.
    """
    sent = (message.meta or {}).items()
    meta = {name: value for name, value in sent if name.startswith(ENVELOPE_PREFIX) and name != SESSION_KEY}
    params = {"params": {"_meta": meta}} if meta else {}
    return join({"jsonrpc": "2.0", "id": Raw(request_id), "method": method, **params})


def _inner(members: dict[str, Any], name: str) -> dict[str, Any]:
    """The object that stands there, taken apart in its place; an empty one where none stands."""
    value = members.get(name, _NOTHING)
    members[name] = inner = last_members(value) if bytes(value).startswith(b"{") else {}
    return inner


COPIED: Final = 8192  # bytes; a slice of a longer answer is a view, which takes longer to make than a short copy

# An answer up to the quote that opens the first name in its result, with a place for the id; and from the `_meta`
# that ends its result, with a place for the value. By the character that tells how the server puts spaces.
_SPELLINGS: Final = {
    b'"': (b'{"jsonrpc":"2.0","id":%b,"result":{"', b'"_meta":%b}}'),
    b" ": (b'{"jsonrpc": "2.0", "id": %b, "result": {"', b'"_meta": %b}}'),
}
_TELLING: Final = slice(len('{"jsonrpc":'), len('{"jsonrpc":') + 1)

_NEW_META: Final = b',"_meta":{"%b":' % SESSION_KEY.encode()
_MORE_META: Final = b',"%b":' % SESSION_KEY.encode()
_BACKSLASH: Final = ord("\\")


def append(response: bytes, request_id: bytes, session: Callable[[], bytes]) -> bytes | None:
    """The answer with the session as the last member of `result._meta`.

    Args:
        response: A JSON-RPC message of the server.
        request_id: JSON text of the request's id.
        session: As for `splice.echo`.

    Returns:
        The new message, or None where the response is not an answer of the common form.
    """
    spelling = _SPELLINGS.get(response[_TELLING])
    if spelling is None:
        return None
    opening, ending = spelling[0] % request_id, spelling[1]
    start = len(opening)
    if response[:start] != opening or response[-2:] != b"}}":
        return None
    text = response if len(response) < COPIED else memoryview(response)
    try:
        # What stands between the opening and the last brace is one object and nothing more, or the decoder would not
        # read it: so it is the result, the envelope has no other members, and both end with the text.
        result = read_object(text[start - 2 : -1])
        has_meta = "_meta" in result
        if has_meta and not _ends_with_meta(response, bytes(result["_meta"]), ending):
            return None
    except FLAWS:
        return None
    if "cacheScope" in result or "ttlMs" in result:
        return None
    if has_meta:
        return b"".join((text[:-3], _MORE_META, session(), b"}}}"))
    return b"".join((text[:-2], _NEW_META, session(), b"}}}"))


def _ends_with_meta(response: bytes, value: bytes, ending: bytes) -> bool:
    """Whether `_meta` is the last member of the result, and an object of some members but no session.

    The text that comes last may look like `_meta` and yet lie deeper, or within a string. It does neither: its first
    quote would have to be escaped, or the rest would be no JSON; and its value ends just before the result does.
    """
    ending = ending % value
    at = len(response) - len(ending)
    if response[at:] != ending or response[at - 1] == _BACKSLASH:
        return False
    meta = read_object(value)
    return bool(meta) and SESSION_KEY not in meta
