"""Bodies of requests, written well and damaged: what is read must be what the standard library reads.

A body that a parser which folds case would read otherwise, as Go's does, must be refused.
"""

from __future__ import annotations

import json
from random import Random
from typing import Any, Final

from mcp_sessions._errors import Refusal
from mcp_sessions._protocol import jsonrpc
from mcp_sessions._protocol.jsonrpc import SESSION_KEY

from .trials import Disagreement, mutate

NAMES: Final = [
    *("jsonrpc", "id", "method", "params", "_meta", "name", "uri", "a", "", "id\x00", "\u00e9"),
    *("Method", "ID", "JSONRPC", "param\u017f", "_Meta", "NAME", "uRi", "sessionID", "method\u0301", "m\u0415thod"),
]
ENVELOPE: Final = {"jsonrpc", "id", "method", "params", "result", "error", "sessionId"}
OF_PARAMS: Final = {"name", "uri", "_meta", "clientInfo", "capabilities", "protocolVersion", "cursor", "sessionId"}
PREFIX: Final = "io.modelcontextprotocol/"
READ: Final = [  # by level
    *(ENVELOPE, OF_PARAMS),
    {SESSION_KEY, PREFIX + "protocolVersion", PREFIX + "clientCapabilities", "baggage"},
]
TEXTS: Final = ["2.0", "tools/call", "resources/read", "ping", "", "\u00e9\U0001f600", '"\\', "\x7f", "\u05f5\u05f6"]
LEAVES: Final[list[Any]] = [None, True, False, 0, -1, 1.5, 1e300, float("nan"), 2**70, *TEXTS]
TARGETS: Final = {"tools/call": "name", "resources/read": "uri"}
LONE: Final = (b"\\ud", b"\\uD")


class Members(tuple[tuple[str, Any], ...]):
    """An object as it is written."""

    __slots__ = ()


def value(random: Random, depth: int = 0) -> Any:
    """Any JSON value."""
    if depth > 3 or random.random() < 0.6:
        return random.choice(LEAVES)
    inner = [value(random, depth + 1) for _ in range(random.randrange(4))]
    return inner if random.random() < 0.5 else {random.choice(NAMES): item for item in inner}


def message(random: Random) -> Any:
    """A message that is mostly right."""
    params: Any = {"name": random.choice(TEXTS), "_meta": {SESSION_KEY: {"sessionId": "x"}, "a": value(random)}}
    made: dict[str, Any] = {
        "jsonrpc": "2.0",
        "id": random.choice((1, "a", -5, 2**70)),
        "method": random.choice(TEXTS),
        "params": params,
    }
    levels = [made, params, params["_meta"]]
    for _ in range(random.choice((0, 0, 1, 2))):
        random.choice(levels)[random.choice(NAMES)] = value(random)
    if random.random() < 0.3:
        made.pop(random.choice(list(made)))
    return made


def text(random: Random) -> str:
    """A message or a batch in one of its spellings."""
    made: Any = message(random) if random.random() < 0.8 else [message(random) for _ in range(random.randrange(4))]
    written = json.dumps(made, ensure_ascii=random.random() < 0.5, indent=random.choice((None, None, 1, "\t")))
    if random.random() < 0.1:
        written = written.replace("{", '{"a": 0, ' if random.random() < 0.5 else '{"method": 0, ', 1)
    return written if random.random() < 0.3 else mutate(random, written)


# --- the oracle ----------------------------------------------------------------------------------


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


# --- judged --------------------------------------------------------------------------------------


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


def judge(body: bytes) -> str:
    """What the package makes of a body, if the oracle agrees.

    Raises:
        Disagreement: It does not.
    """
    try:
        expected = _without_values(read(body))
    except NotRead:
        expected = None
    try:
        found = _without_values(_ours(body))
    except Refusal as refused:
        # Only here may the package be the stricter one: what has no UTF-8 form, and what is nested too deeply.
        if expected is not None and not (refused.reason in {"lone_surrogate", "nesting_too_deep"} or _is_odd(body)):
            raise Disagreement(f"jsonrpc: {refused.reason}, and the oracle reads {expected}: {body!r}") from None
        return refused.reason
    if found != expected:
        raise Disagreement(f"jsonrpc: read as {found}, and the oracle says {expected}: {body!r}")
    return "read"


def _without_values(messages: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """A target that is no string is none, in both."""
    return [(*rest[:3], rest[3] if isinstance(rest[3], str) else None, rest[4]) for rest in messages]


def _is_odd(body: bytes) -> bool:
    """Whether a lone surrogate may stand in it, which only some parsers read."""
    return any(lone in body for lone in LONE)


def trial(random: Random) -> str:
    """One body, judged by both."""
    return judge(text(random).encode("utf-8", "surrogatepass"))
