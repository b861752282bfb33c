"""Rewriting JSON-RPC messages, in which every value that is not ours keeps its exact bytes.

A JSON round trip would change 1e400, 2^64 and escapes, so objects are taken apart into names and value slices and
joined again. An answer that cannot be read, or that a reader who ignores case would read otherwise, passes as it was.
Sources: the data-layer sessions draft; JSON-RPC 2.0 section 5; RFC 8259; MCP 2026-07-28 for cache hints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw

from .._errors import Refusal
from .._session.claims import RedactedRepr
from .jsonrpc import Message
from .members import SESSION_KEY, Value
from .strict_json import DECODE_ERRORS, Names, join, last_members, read_object, string

ENVELOPE_PREFIX: Final = "io.modelcontextprotocol/"
COPIED: Final = 8192  # bytes; a slice of a longer answer is a view, which takes longer to make than a short copy

_ENVELOPE: Final = Names("result", "id", usual=("jsonrpc",))
_USUAL: Final = (
    *("content", "structuredContent", "isError", "resultType", "protocolVersion", "serverInfo", "instructions"),
    *("supportedVersions", "tools", "prompts", "resources", "resourceTemplates", "nextCursor", "contents"),
)
_RESULT: Final = Names("_meta", "cacheScope", "ttlMs", "capabilities", usual=_USUAL)
_is_usual: Final = frozenset(_USUAL).issuperset  # of the names in a result
_NOTHING: Final = Raw()
_NULL: Final = Raw(b"null")
_BACKSLASH: Final = ord("\\")
_WITH_METHOD: Final = (b'{"jsonrpc":"2.0","method":', b'{"jsonrpc": "2.0", "method":', b'{"method":')
"""How notifications begin, and some requests: with a method no message is an answer, whatever else it holds."""

# An answer up to the quote that opens the first name in its result, with a place for the id; and from the `_meta`
# that ends its result, with a place for the value. By the character that shows how the server puts spaces.
_COMPACT: Final = (b'{"jsonrpc":"2.0","id":', b',"result":{"', b'"_meta":%b}}')
_SPACED: Final = (b'{"jsonrpc": "2.0", "id": ', b', "result": {"', b'"_meta": %b}}')
_NEW_META: Final = b',"_meta":{"%b":' % SESSION_KEY.encode()
_MORE_META: Final = b',"%b":' % SESSION_KEY.encode()


def same_id(left: bytes, right: bytes) -> bool:
    """Whether two ids, as JSON text, are one, however their characters are escaped."""
    if bytes(left) == right:
        return True
    try:
        text = string(left)
        return text is not None and text == string(right)
    except Refusal:
        return False


class Response(RedactedRepr, msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """The members that an answer has, each value as sent. (To read any members takes longer.)"""

    id: Raw
    jsonrpc: Value = UNSET
    result: Value = UNSET
    error: Value = UNSET  # some servers always write it, as null where there is none
    method: Value = UNSET


_read_response = msgspec.json.Decoder(Response).decode


def response_to(text: bytes, request_id: bytes) -> Response | None:
    """Read what answers a request, be it with an error; None for anything else, and for what cannot be read."""
    if text.startswith(_WITH_METHOD):
        return None
    try:
        found = _read_response(text)
    except DECODE_ERRORS:
        try:
            envelope = last_members(text)
            found = Response(**{name: envelope[name] for name in Response.__struct_fields__ if name in envelope})
        except (Refusal, TypeError):  # without an id
            return None
    return found if found.method is UNSET and (found.id == Raw(request_id) or same_id(found.id, request_id)) else None


def is_answer(text: bytes, request_id: bytes) -> bool:
    """Whether the text of a message is the success that answers a request; what cannot be read is not."""
    found = response_to(text, request_id)
    return found is not None and found.result is not UNSET and (found.error is UNSET or found.error == _NULL)


def _result(text: bytes, request_id: bytes) -> tuple[dict[str, Any], dict[str, Any]] | None:
    if not is_answer(text, request_id):
        return None
    try:
        envelope: dict[str, Any] = last_members(text)
        if not _ENVELOPE.has_only(envelope) and _ENVELOPE.has_case_variant(envelope):
            return None
        result = last_members(envelope["result"])
    except Refusal:
        return None
    if not _RESULT.has_only(result) and _RESULT.has_case_variant(result):
        return None
    return envelope, result


def _inner(members: dict[str, Any], name: str) -> dict[str, Any]:
    """Take apart the object of that name in its place; an empty one where none stands."""
    value = members.get(name, _NOTHING)
    members[name] = inner = last_members(value) if bytes(value).startswith(b"{") else {}
    return inner


def _make_private(result: dict[str, Any]) -> bool:
    """Make a result that has cache hints private and stale, since client caches do not know sessions."""
    has_hints = "cacheScope" in result or "ttlMs" in result
    if has_hints:
        result["cacheScope"], result["ttlMs"] = "private", 0
    return has_hints


def echo(response: bytes, request_id: bytes, session: Callable[[], bytes]) -> bytes | None:
    """Return the answer with the session merged into `result._meta`; its cache hints become private and stale.

    An answer as nearly every server writes it need not be taken apart: it holds `jsonrpc`, `id` and `result` in this
    order and nothing else, compact or with the spaces of Python's `json`; its result has no cache hints, and `_meta`
    comes last in it or not at all. The session then goes before its last braces.

    Args:
        response: A JSON-RPC message of the server.
        request_id: JSON text of the request's id.
        session: Returns the JSON text of the session's metadata, and closes its state, for that answer only.

    Returns:
        The new message, or None where the response is not the success that answers the request.
    """
    member = _member(response, request_id)
    if member is None:
        return _echo(response, request_id, session)
    text = response if len(response) < COPIED else memoryview(response)
    return b"".join((text[: -2 if member is _NEW_META else -3], member, session(), b"}}}"))


def _member(response: bytes, request_id: bytes) -> bytes | None:
    """Return what comes before the session in an answer of the common form, or None in any other.

    What stands between the opening and the last brace is the result, as the decoder reads one object and nothing more.
    The text that comes last may look like `_meta` and yet lie deeper, or within a string. It does neither: its first
    quote would have to be escaped, or the rest would not be JSON; and its value ends just before the result does.
    """
    before_id, before_result, ending = _COMPACT if response.startswith(_COMPACT[0]) else _SPACED
    opening = b"".join((before_id, request_id, before_result))
    if not (response.startswith(opening) and response.endswith(b"}}")):
        return None
    text = response if len(response) < COPIED else memoryview(response)
    try:
        result = read_object(text[len(opening) - 2 : -1])
        if _is_usual(result):
            return _NEW_META
        if (
            "cacheScope" in result
            or "ttlMs" in result
            or (not _RESULT.has_only(result) and _RESULT.has_case_variant(result))
        ):
            return None
        if "_meta" not in result:
            return _NEW_META
        value = join(result["_meta"])
        ending = ending % value
        at = len(response) - len(ending)
        if response[at:] != ending or response[at - 1] == _BACKSLASH:
            return None
        meta = read_object(value)
    except DECODE_ERRORS:
        return None
    return _MORE_META if meta and SESSION_KEY not in meta else None


def _echo(response: bytes, request_id: bytes, session: Callable[[], bytes]) -> bytes | None:
    found = _result(response, request_id)
    if found is None:
        return None
    envelope, result = found
    envelope["result"] = result
    _make_private(result)
    try:
        meta = _inner(result, "_meta")
    except Refusal:
        return None
    meta[SESSION_KEY] = Raw(session())
    return join(envelope)


def private(response: bytes, request_id: bytes) -> bytes | None:
    """Return the answer with its cache hints private and stale, or None where it has none; all else is as `echo`."""
    if b"cacheScope" not in response and b"ttlMs" not in response and b"\\" not in response:
        return None
    found = _result(response, request_id)
    if found is None or not _make_private(found[1]):
        return None
    return join({**found[0], "result": found[1]})


def advertise(response: bytes, request_id: bytes, settings: bytes, capability: bytes = b"{}") -> bytes | None:
    """Return the answer to `initialize` or `server/discover` with sessions among its capabilities, or None as `echo`.

    As JSON text, `capability` goes to `capabilities.sessions` and `settings` to `capabilities.experimental.sessions`.
    """
    found = _result(response, request_id)
    if found is None:
        return None
    envelope, result = found
    envelope["result"] = result
    try:
        capabilities = _inner(result, "capabilities")
        capabilities["sessions"] = Raw(capability)
        _inner(capabilities, "experimental")["sessions"] = Raw(settings)
    except Refusal:
        return None
    return join(envelope)


def with_field(response: bytes, request_id: bytes, session_id: str) -> bytes | None:
    """Return the answer with its session in the top-level `sessionId` of SEP-1364; else as `echo`."""
    found = _result(response, request_id)
    if found is None:
        return None
    envelope, result = found
    if _make_private(result):
        envelope["result"] = result
    envelope["sessionId"] = session_id
    return join(envelope)


def without_session(message: Message) -> bytes:
    """Return a message with the session taken out of `_meta`; an empty `_meta` stays."""
    if message.session is None:
        return message.body
    meta = {name: value for name, value in (message.meta or {}).items() if name != SESSION_KEY}
    return join({**message.envelope, "params": {**message.all_params, "_meta": meta}})


def with_capabilities(body: bytes) -> bytes:
    """Return an `initialize` with empty capabilities of its client, where it states none."""
    envelope: dict[str, Any] = last_members(body)
    params = _inner(envelope, "params")
    if bytes(params.get("capabilities", b"null")) != b"null":
        return body
    params["capabilities"] = {}
    return join(envelope)


def with_trace(body: bytes, traceparent: str) -> bytes:
    """Return a request or notification that names this trace context in `params._meta` in place of its own."""
    envelope: dict[str, Any] = last_members(body)
    meta = _inner(_inner(envelope, "params"), "_meta")
    meta.pop("tracestate", None)
    meta["traceparent"] = traceparent
    return join(envelope)


def result(request_id: bytes, result: Mapping[str, Any]) -> bytes:
    """Return a success with these members, as JSON values, for an id, as JSON text."""
    return join({"jsonrpc": "2.0", "id": Raw(request_id), "result": dict(result)})


def error(request_id: bytes | None, code: int, message: str, data: Mapping[str, Any] | None = None) -> bytes:
    """Return an error for an id, as JSON text, or for null; a lone surrogate in the message becomes `?`."""
    written = message if message.isascii() else message.encode(errors="replace").decode()
    members: dict[str, Any] = {"code": code, "message": written}
    if data is not None:
        members["data"] = data
    return b"".join((b'{"jsonrpc":"2.0","id":', request_id or b"null", b',"error":', join(members), b"}"))


def notification(method: str) -> bytes:
    """Return a notification without params."""
    return join({"jsonrpc": "2.0", "method": method})


def ping(message: Message, request_id: bytes, method: str) -> bytes:
    """Return a question in the name of a message's sender: its envelope without the session, and no params."""
    meta = message.meta or {}
    names = [name for name in meta if name.startswith(ENVELOPE_PREFIX) and name != SESSION_KEY]
    question: dict[str, Any] = {"jsonrpc": "2.0", "id": Raw(request_id), "method": method}
    if names:
        question["params"] = {"_meta": {name: meta[name] for name in names}}
    return join(question)
