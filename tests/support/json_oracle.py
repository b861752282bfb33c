"""The oracle for bodies of requests: what is read must be what the standard library reads.

A body that a parser which folds case would read otherwise, as Go's does, must be refused.
"""

from __future__ import annotations

import json
from typing import Any, Final

from mcp_sessions._errors import Refusal
from mcp_sessions._protocol import jsonrpc
from mcp_sessions._protocol.jsonrpc import SESSION_KEY

ENVELOPE: Final = {"jsonrpc", "id", "method", "params", "result", "error", "sessionId"}
OF_PARAMS: Final = {"name", "uri", "_meta", "clientInfo", "capabilities", "protocolVersion", "cursor", "sessionId"}
PREFIX: Final = "io.modelcontextprotocol/"
READ: Final = [  # by level
    *(ENVELOPE, OF_PARAMS),
    {SESSION_KEY, PREFIX + "protocolVersion", PREFIX + "clientCapabilities", "baggage"},
]
TARGETS: Final = {
    "tools/call": "name",
    "prompts/get": "name",
    **dict.fromkeys(("resources/read", "resources/subscribe", "resources/unsubscribe"), "uri"),
}
LONE: Final = (b"\\ud", b"\\uD")


class Members(tuple[tuple[str, Any], ...]):
    """An object as it is written."""

    __slots__ = ()


class NotRead(Exception):
    """The oracle refuses the body."""


def read(body: bytes) -> list[tuple[Any, ...]]:
    """Kind, method, id, target and members of `_meta` of each message, as the standard library reads them.

    Raises:
        NotRead: It is no JSON-RPC message or batch of them that every parser reads alike.
    """

    def refuse(name: str) -> None:
        raise ValueError(name)

    try:
        document = json.loads(body.decode(), object_pairs_hook=Members, parse_constant=refuse)
    except (ValueError, RecursionError):
        raise NotRead from None
    if isinstance(document, list):
        if not document:
            raise NotRead
        return [_message(item) for item in document]
    return [_message(document)]


def _message(item: Any) -> tuple[Any, ...]:
    envelope = _object(item)
    if envelope.get("jsonrpc") != "2.0" or _folds(envelope, 0):
        raise NotRead
    if "method" not in envelope:
        return ("response", "", None, None, None)
    method = envelope["method"]
    params = _optional(envelope, "params")
    meta = _optional(params or {}, "_meta")
    if _folds(params or {}, 1) or _folds(meta or {}, 2):
        raise NotRead
    if not isinstance(method, str) or ("id" in envelope and type(envelope["id"]) not in (int, str)):
        raise NotRead
    kind = "request" if "id" in envelope else "notification"
    target = (params or {}).get(TARGETS.get(method, ""))
    return (kind, method, envelope.get("id"), target if method in TARGETS else None, meta)


def _object(item: Any) -> dict[str, Any]:
    members = dict(item) if isinstance(item, Members) else {}
    if not isinstance(item, Members) or len(members) != len(item):
        raise NotRead
    return members


def _folds(members: dict[str, Any], level: int) -> bool:
    """Whether a name is read by a parser that folds case as Go's does, and is not the one that is read."""
    folded = {name.replace("\u017f", "s").replace("\u212a", "k").lower() for name in members.keys() - READ[level]}
    return not folded.isdisjoint(name.lower() for name in READ[level])


def _optional(outer: dict[str, Any], name: str) -> dict[str, Any] | None:
    return None if outer.get(name) is None else _object(outer[name])


def _ours(body: bytes) -> list[tuple[Any, ...]]:
    try:
        items: tuple[jsonrpc.Message, ...] = (jsonrpc.parse(body),)
    except jsonrpc.Batch as batch:
        items = batch.items
    return [
        (
            item.kind.value,
            item.method,
            None if item.id is None else json.loads(item.id),
            item.target(),
            None if item.meta is None else {name: _load(bytes(raw)) for name, raw in item.meta.items()},
        )
        for item in items
    ]


def _load(raw: bytes) -> Any:
    return json.loads(raw, object_pairs_hook=Members)


def judge(body: bytes) -> None:
    """Assert that the package and the oracle read the same in a body, or both refuse it."""
    try:
        expected = _without_values(read(body))
    except NotRead:
        expected = None
    try:
        found = _without_values(_ours(body))
    except Refusal as refused:
        # Only here may the package be the stricter one: what has no UTF-8 form, and what is nested too deeply.
        is_stricter = refused.reason in {"lone_surrogate", "nesting_too_deep"} or any(lone in body for lone in LONE)
        assert expected is None or is_stricter, f"{refused.reason}, and the oracle reads {expected}: {body!r}"
        return
    assert found == expected, body


def _without_values(messages: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """A target that is no string is none, in both."""
    return [(*rest[:3], rest[3] if isinstance(rest[3], str) else None, rest[4]) for rest in messages]
