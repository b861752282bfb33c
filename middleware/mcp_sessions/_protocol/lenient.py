"""What is no JSON-RPC 2.0 to us, but may be a message to a server that reads leniently.

Such servers accept a message without `jsonrpc`, of another version, or with its names in another case. If a path serves
other things, too, their JSON must pass: what is refused has a method as MCP names them, which concerns a session.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Raw

from .._errors import Refusal
from .jsonrpc import Batch, Message, parse
from .strict_json import DECODE_ERRORS, SPACE, check_level, join, last_members, string

_MAY_HAVE_METHOD: Final = re.compile(rb"method|\\u00", re.IGNORECASE)
_array = msgspec.json.Decoder(list[Raw]).decode


def may_evade(body: bytes, concerns_session: Callable[[Message], bool]) -> bool:
    """Return whether a body that is not JSON-RPC 2.0 may hold a message that would be judged if it were."""
    if not _MAY_HAVE_METHOD.search(body):
        return False
    try:
        texts = _array(body) if body.lstrip(SPACE).startswith(b"[") else [body]
        return any(_evades(bytes(text), concerns_session) for text in texts if _MAY_HAVE_METHOD.search(text))
    except (*DECODE_ERRORS, Refusal, Batch):  # a server may read what we cannot
        return True


def _evades(text: bytes, concerns_session: Callable[[Message], bool]) -> bool:
    if not text.lstrip(SPACE).startswith(b"{"):
        return False
    found = last_members(text)
    check_level(text, found)
    named = [(name.casefold(), value) for name, value in found.items()]
    methods = [string(value) for name, value in named if name == "method"]
    if not any("/" in method for method in methods if method is not None):  # as that of a payment or an HTTP request
        return False
    message = parse(join({**dict(named), "jsonrpc": "2.0"}))
    return len(methods) > 1 or concerns_session(message)
