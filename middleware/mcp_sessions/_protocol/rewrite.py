"""Rewriting JSON-RPC messages, in which every value that the middleware does not set keeps its exact bytes.

A JSON round trip would change 1e400, 2^64 and escapes, so objects are taken apart into names and value slices and
joined again. An answer that cannot be read, or that a reader who ignores case would read otherwise, passes as it was.
Sources: the data-layer sessions draft; JSON-RPC 2.0 section 5; RFC 8259; MCP 2026-07-28 for cache hints.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from .._errors import Refusal
from .._session.claims import RedactedRepr
from .jsonrpc import RESPONSE, SESSION_KEY, Message
from .strict_json import DECODE_ERRORS, NULL, SPACE, Names, join, last_members, string

_KEY: Final = b'"%b"' % SESSION_KEY.encode()
_COLON: Final = SPACE + b":"
_ESCAPED: Final = re.compile(rb"\\(?:u00|/)")  # a letter of the key, or its slash
ENVELOPE_PREFIX: Final = "io.modelcontextprotocol/"

_ENVELOPE: Final = Names("result", "id")
_RESULT: Final = Names("_meta", "cacheScope", "ttlMs", "capabilities")


def same_id(left: bytes, right: bytes) -> bool:
    """Return True if two ids, as JSON text, are the same, however their characters are escaped."""
    if bytes(left) == right:
        return True
    try:
        text = string(left)
        return text is not None and text == string(right)
    except Refusal:
        return False


def is_response(text: bytes, request_id: bytes) -> bool:
    """Return True if a message answers a request, with a result or an error; False if it cannot be read."""
    return _response(text, request_id) is not None


class _Success(RedactedRepr, Struct, forbid_unknown_fields=True, gc=False):
    """A success as nearly every server writes it."""

    jsonrpc: Raw
    id: Raw
    result: dict[str, Raw]
    error: UnsetType | None = UNSET  # some servers always write one


_success: Final = msgspec.json.Decoder(_Success).decode


class Answer(RedactedRepr, Struct, frozen=True, eq=False):
    """The success that answers a request."""

    text: bytes
    envelope: Mapping[str, Any]  # its members, each as JSON
    result: Mapping[str, Raw] | None = None  # those of the result; None if they were not read yet


def answer(text: bytes, request_id: bytes) -> Answer | None:
    """Take a message apart if it is the success that answers a request; what cannot be read is not."""
    try:
        found = _success(text)
    except DECODE_ERRORS:
        envelope = _response(text, request_id)
        is_success = envelope is not None and "result" in envelope and envelope.get("error", NULL) == NULL
        return Answer(text, envelope) if envelope is not None and is_success else None
    if not same_id(found.id, request_id):
        return None
    envelope = {"jsonrpc": found.jsonrpc, "id": found.id, "result": None, "error": found.error}
    if found.error is UNSET:
        del envelope["error"]
    return Answer(text, envelope, found.result)


def is_answer(text: bytes, request_id: bytes) -> bool:
    """Return True if a message is the success that answers a request; False if it cannot be read."""
    return answer(text, request_id) is not None


def _response(text: bytes, request_id: bytes) -> dict[str, Any] | None:
    try:
        envelope = last_members(text)
    except Refusal:
        return None
    answers = "method" not in envelope and "id" in envelope and same_id(envelope["id"], request_id)
    return envelope if answers else None


def result_of(answer: Answer) -> dict[str, Any] | None:
    """Take the result of an answer apart; None if that cannot be read, or could be read otherwise."""
    if answer.result is not None:
        members: dict[str, Any] = {**answer.result}
        return None if _RESULT.has_case_variant(members) else members
    try:
        result = last_members(answer.envelope["result"])
    except Refusal:
        return None
    return None if _ENVELOPE.has_case_variant(answer.envelope) or _RESULT.has_case_variant(result) else result


def _inner(members: dict[str, Any], name: str) -> dict[str, Any]:
    """Take the object of this name apart in its place; an empty object if there is no object."""
    value = members.get(name)
    members[name] = inner = last_members(value) if value is not None and bytes(value).startswith(b"{") else {}
    return inner


def _make_private(result: dict[str, Any]) -> bool:
    """Make a result that has cache hints private and stale, since client caches do not know sessions."""
    has_hints = "cacheScope" in result or "ttlMs" in result
    if has_hints:
        result["cacheScope"], result["ttlMs"] = "private", 0
    return has_hints


def echo(answer: Answer, session: Callable[[], bytes]) -> bytes | None:
    """Return the answer with the session merged into `result._meta`; its cache hints become private and stale.

    Args:
        answer: The answer of the server.
        session: Called at most once; returns the JSON text of the session's metadata.

    Returns:
        The new message, or None if the result cannot be read in one way only.
    """
    result = result_of(answer)
    if result is None:
        return None
    _make_private(result)
    try:
        meta = _inner(result, "_meta")
    except Refusal:
        return None
    meta[SESSION_KEY] = Raw(session())
    return join({**answer.envelope, "result": result})


def private(answer: Answer) -> bytes | None:
    """Return the answer with its cache hints private and stale, or None if it has none; all else is as `echo`."""
    result = result_of(answer)
    if result is None or not _make_private(result):
        return None
    return join({**answer.envelope, "result": result})


def advertise(answer: Answer, settings: bytes, capability: bytes = b"{}") -> bytes | None:
    """Return the answer to `initialize` or `server/discover` with sessions among its capabilities, or None as `echo`.

    As JSON text, `capability` goes to `capabilities.sessions` and `settings` to `capabilities.experimental.sessions`.
    """
    result = result_of(answer)
    if result is None:
        return None
    try:
        capabilities = _inner(result, "capabilities")
        capabilities["sessions"] = Raw(capability)
        _inner(capabilities, "experimental")["sessions"] = Raw(settings)
    except Refusal:
        return None
    return join({**answer.envelope, "result": result})


def with_field(answer: Answer, session_id: str) -> bytes | None:
    """Return the answer with its session in the top-level member `sessionId`; else as `echo`."""
    result = result_of(answer)
    if result is None:
        return None
    changed = {"result": result} if _make_private(result) else {}
    return join({**last_members(answer.text), **changed, "sessionId": session_id})


def without_session(message: Message) -> bytes:
    """Return a message with no session in its `_meta`, nor in a client's answers; an empty `_meta` stays."""
    body, named = message.body, message.session
    if named is None and (message.kind is not RESPONSE or not (_KEY in body or b"\\" in body)):
        return body
    if named is not None and (rest := _cut(body, named)) is not None:
        return rest
    envelope: dict[str, Any] = last_members(body)
    params, result = object_in(envelope, "params"), object_in(envelope, "result")
    answers = object_in(params, "inputResponses")  # of a request that is repeated with what the server asked for
    parents = [params, result, *(object_in(answers, name) for name in list(answers))]
    metas = [object_in(parent, "_meta") for parent in parents]
    found = [meta.pop(SESSION_KEY) for meta in metas if SESSION_KEY in meta]
    return join(envelope) if found else body


def _cut(body: bytes, named: bytes) -> bytes | None:
    """Cut the session out of the text of a message; None if that has the member's name twice, or may escape it."""
    before, _, after = body.partition(_KEY)
    after = after.lstrip(_COLON)
    if not after.startswith(named) or (b"\\" in body and _ESCAPED.search(body)):
        return None
    after = after[len(named) :].lstrip(SPACE)
    if _KEY in after:
        return None
    return before + after[1:] if after.startswith(b",") else before.rstrip(SPACE).removesuffix(b",") + after


def object_in(members: dict[str, Any], name: str) -> dict[str, Any]:
    """Take apart the object of that name in its place, if there is one; else return an empty one."""
    if not bytes(members.get(name, NULL)).startswith(b"{"):
        return {}
    members[name] = inner = last_members(members[name])
    return inner


def with_capabilities(body: bytes) -> bytes:
    """Return an `initialize` with empty capabilities if its client states none."""
    envelope: dict[str, Any] = last_members(body)
    params = _inner(envelope, "params")
    if bytes(params.get("capabilities", b"null")) != b"null":
        return body
    params["capabilities"] = {}
    return join(envelope)


def with_trace(body: bytes, traceparent: str) -> bytes:
    """Return a request or notification whose `params._meta` names this trace context, and no other."""
    envelope: dict[str, Any] = last_members(body)
    meta = _inner(_inner(envelope, "params"), "_meta")
    meta.pop("tracestate", None)
    meta["traceparent"] = traceparent
    return join(envelope)


def result(request_id: bytes, result: Mapping[str, Any], more: Mapping[str, Any] | None = None) -> bytes:
    """Return a success with these members, as JSON values, for an id, as JSON text; `more` stands beside the result."""
    return join({"jsonrpc": "2.0", "id": Raw(request_id), "result": dict(result), **(more or {})})


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


def request(request_id: bytes, method: str) -> bytes:
    """Return a request without params."""
    return join({"jsonrpc": "2.0", "id": Raw(request_id), "method": method})


def build_probe(
    message: Message, request_id: bytes, method: str, params: Mapping[str, str] = MappingProxyType({})
) -> bytes:
    """Return a question in the name of a message's sender: its envelope without the session, and no other params."""
    sent = message.meta or {}
    meta = {name: sent[name] for name in sent if name.startswith(ENVELOPE_PREFIX) and name != SESSION_KEY}
    question: dict[str, Any] = {"jsonrpc": "2.0", "id": Raw(request_id), "method": method}
    if meta or params:
        question["params"] = {**params, "_meta": meta}
    return join(question)
