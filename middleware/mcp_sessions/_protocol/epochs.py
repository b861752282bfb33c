"""The epoch in the ids of a server's own requests: an answer counts for the question that was asked, and for no other.

A server counts its requests from one. If the process that holds a session dies, the next one counts from one again, and
a late answer to a question of the first would answer another question of the second. So an id leaves as
`"e<epoch>:<id as JSON>"`, and only an answer of the session's current epoch reaches the server. The id of a request
also stands in the notification that cancels it, and in the token by which its receiver reports progress.
Source: MCP 2025-11-25, "Elicitation", "Sampling", "Cancellation" and "Progress".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Raw

from .._errors import Refusal
from .jsonrpc import RESPONSE, Message
from .methods import CANCELLED, PROGRESS
from .strict_json import DECODE_ERRORS, NULL, SPACE, join, last_members, string

_MARKED: Final = re.compile(r"e(\d{1,18}):(.+)", re.DOTALL)
_BY_PARAM: Final = {CANCELLED: "requestId", PROGRESS: "progressToken"}
"""The notifications that refer to a request, and the member of `params` by which they do."""
_items = msgspec.json.Decoder(list[Raw]).decode
_value = msgspec.json.Decoder(Raw).decode


class LateAnswer(Exception):
    """A client's message belongs to a question that another process asked, in another epoch."""


def mark(text: bytes, epoch: int) -> bytes:
    """Return a message of the server with the epoch in the ids of the server's requests; any other message as it is."""
    if b'"method"' not in text and b"\\" not in text:
        return text
    try:
        if text.lstrip(SPACE).startswith(b"["):
            items = _items(text)
            marked = [mark(bytes(item), epoch) for item in items]
            return text if marked == items else b"[%b]" % b",".join(marked)
        envelope: dict[str, Any] = last_members(text)
        return _marked(text, envelope, epoch)
    except (Refusal, *DECODE_ERRORS):  # no client can read it either
        return text


def _marked(text: bytes, envelope: dict[str, Any], epoch: int) -> bytes:
    method = string(envelope.get("method", NULL))
    if method is not None and envelope.get("id", NULL) != NULL:
        envelope["id"] = _with_epoch(envelope["id"], epoch)
        _change(envelope, ("params", "_meta", "progressToken"), lambda token: _with_epoch(token, epoch))
        return join(envelope)
    if method == CANCELLED and _change(envelope, ("params", "requestId"), lambda value: _with_epoch(value, epoch)):
        return join(envelope)
    return text


def _with_epoch(value: Any, epoch: int) -> str:
    return f"e{epoch}:{bytes(value).decode()}"


def restore(message: Message, body: bytes, epoch: int) -> bytes:
    """Return a client's message as the server must get it, with the ids of the server's requests as it gave them.

    Args:
        message: The message as it came.
        body: Its text, from which credentials may have been removed.
        epoch: The current epoch of its session.

    Raises:
        LateAnswer: It belongs to a request of another epoch.
    """
    if message.kind is RESPONSE:
        envelope: dict[str, Any] = last_members(body)
        if envelope.get("id", NULL) == NULL:  # it answers no request
            return body
        original = _original(envelope["id"], epoch)
        if original is None:
            raise LateAnswer
        envelope["id"] = original
        return join(envelope)
    if message.method not in _BY_PARAM:
        return body
    envelope = last_members(body)
    is_changed = _change(
        envelope, ("params", _BY_PARAM[message.method]), lambda value: _original(value, epoch) or value
    )
    return join(envelope) if is_changed else body


def _original(value: Any, epoch: int) -> Raw | None:
    """Return the id that the server gave, or None if the value has no epoch.

    Raises:
        LateAnswer: It has another one.
    """
    try:
        found = _MARKED.fullmatch(string(value) or "")
        original = None if found is None else _value(found[2].encode())
    except (Refusal, *DECODE_ERRORS):  # the client's own
        return None
    if found is None or original is None:
        return None
    if found[1] != str(epoch):
        raise LateAnswer
    return original


def _change(members: dict[str, Any], path: tuple[str, ...], change: Callable[[Any], Any]) -> bool:
    """Change the value at a path of objects, if there is one, and return True if it became another."""
    name, *rest = path
    value = members.get(name, NULL)
    if value == NULL:
        return False
    if rest:
        if not bytes(value).lstrip(SPACE).startswith(b"{"):
            return False
        members[name] = inner = last_members(value)
        return _change(inner, tuple(rest), change)
    members[name] = changed = change(value)
    return changed is not value
