"""What a message is called in telemetry: its method, what it is about, its id and its protocol version.

All of it was written by a client, who may put anything there, a session id too. So each word is taken
only as far as it looks like what it should be, and is left out otherwise. Nothing here reads arguments.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from msgspec import UNSET

from ..envelope import looks_like_ours
from ..errors import Refusal
from ..jsonrpc import TARGETS, Message
from .attributes import (
    EXECUTE_TOOL,
    METHOD,
    NETWORK_PROTOCOL,
    NETWORK_TRANSPORT,
    OPERATION,
    PROMPT,
    PROTOCOL_VERSION,
    REQUEST_ID,
    RESOURCE_URI,
    TOOL,
)

HTTP: Final = {NETWORK_TRANSPORT: "tcp", NETWORK_PROTOCOL: "http"}
_MAX_NAME: Final = 128  # characters; the protocol's own limit for a tool's name
_MAX_URI: Final = 512
_MAX_ID: Final = 64
_WORD: Final = 64  # bits
_VERSION: Final = re.compile(r"20\d\d-[01]\d-[0-3]\d")
_USERINFO: Final = re.compile(r"(?<=//)[^/?#]*@")
NAMED: Final = {"tools/call": TOOL, "prompts/get": PROMPT}
_OF_RESOURCES: Final = TARGETS.keys() - NAMED.keys()


def target_of(message: Message) -> str | None:
    """The tool or prompt that a message is about, for names of spans; None for others, and for strange ones."""
    return _text(message, _MAX_NAME) if message.method in NAMED else None


def version_of(header: str | None) -> str | None:
    """What the `MCP-Protocol-Version` header says, where it looks like a version: a date of this century."""
    return header if header is not None and _VERSION.fullmatch(header) else None


def described(alike: dict[str, str], message: Message) -> dict[str, str]:
    """All attributes of a message: what it has in common with others, its id, and the resource that it is about.

    Args:
        alike: What it has in common with others; it stays as it is.
        message: The request or notification.
    """
    found = alike.copy()
    if message.given_id is not UNSET and (request_id := _request_id(message)) is not None:
        found[REQUEST_ID] = request_id
    if message.method in _OF_RESOURCES and (uri := _text(message, _MAX_URI, _bare)):
        found[RESOURCE_URI] = uri
    return found


def alike(label: str, target: str | None, version: str | None) -> dict[str, str]:
    """The attributes of all messages that call the same tool in the same way, by the conventions.

    Args:
        label: What the method is called in telemetry.
        target: What `target_of` said of the message.
        version: What `version_of` said of its header.
    """
    found = {METHOD: label, **HTTP}
    if version is not None:
        found[PROTOCOL_VERSION] = version
    if target is not None:
        found[NAMED[label]] = target
    if label == "tools/call":
        found[OPERATION] = EXECUTE_TOOL
    return found


def _text(message: Message, most: int, cut: Callable[[str], str] = str) -> str | None:
    try:
        text = message.target()
    except Refusal:  # a lone surrogate, which no exporter could write
        return None
    if text is None or not text.isprintable() or looks_like_ours(text):
        return None
    return cut(text)[:most]


def _bare(uri: str) -> str:
    """A URI without what often holds credentials: its user, query and fragment."""
    return _USERINFO.sub("", re.split(r"[?#]", uri, maxsplit=1)[0])


def _request_id(message: Message) -> str | None:
    """The id as text. One with an escape in it is left out, and so is one as long as a credential."""
    given = message.given_id
    if type(given) is int and given.bit_length() <= _WORD:  # by far the most
        return str(given)
    raw = (message.id or b"").strip(b'"')
    return raw.decode("utf-8", "replace") if len(raw) <= _MAX_ID and b"\\" not in raw else None
