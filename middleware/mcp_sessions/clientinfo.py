"""What a client calls itself: its name and version, from `initialize` or from the envelope of the modern era.

Kept in the session's token, so that each request can be told whose program sent it. It is the client's own
word: nothing vouches for it, and nothing may hang on it. What cannot stand in one line of a log is left out.
Sources: MCP 2025-11-25, "Initialization"; MCP 2026-07-28, `_meta` of requests.
"""

from __future__ import annotations

from typing import Final

import msgspec

from .dialects.transport import INITIALIZE
from .envelope import looks_like_ours
from .jsonrpc import Message
from .members import FLAWS
from .tokens import MAX_CLIENT_CHARS

CLIENT_INFO_KEY: Final = "io.modelcontextprotocol/clientInfo"


class _Client(msgspec.Struct, gc=False):
    name: str
    version: str = ""


class _Params(msgspec.Struct, gc=False):
    clientInfo: _Client  # noqa: N815  # the protocol's spelling


class _Initialize(msgspec.Struct, gc=False):
    params: _Params


_client: Final = msgspec.json.Decoder(_Client).decode
_initialize: Final = msgspec.json.Decoder(_Initialize).decode


def client_of(message: Message) -> str | None:
    """The name and version that a message's sender gives itself, or None where it gives none that can be shown.

    Args:
        message: An `initialize` of the legacy era, or any message of the modern one.
    """
    try:
        found = _of(message)
    except FLAWS:  # not as the protocol has it, which is no reason to refuse anybody
        return None
    text = "" if found is None else f"{found.name} {found.version}".strip()
    # No session id is as short as what is kept of a name, so most need no such look.
    is_name = text.isprintable() and (len(text) <= MAX_CLIENT_CHARS or not looks_like_ours(text))
    return text if text and is_name else None


def _of(message: Message) -> _Client | None:
    if message.method == INITIALIZE:
        return _initialize(message.body).params.clientInfo
    if message.meta is None or CLIENT_INFO_KEY not in message.meta:
        return None
    return _client(message.meta[CLIENT_INFO_KEY])
