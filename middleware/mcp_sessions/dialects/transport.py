"""The transport header, the dialect of every client of the legacy era.

A server that keeps no sessions answers `initialize` without `Mcp-Session-Id`; then we name one, and the
client sends it with every request. It is a token of its own kind: never accepted in `_meta`, as no
session id is accepted here. Nothing here verifies, and nothing here reads a request's other headers.
Source: MCP 2025-11-25, Streamable HTTP, "Session Management".
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from ..errors import Refusal, SessionHeaderAlone, SessionHeaderMismatch
from ..jsonrpc import Message
from ..members import last_members
from ..tokens import TRANSPORT, Kind
from .draft import Named

INITIALIZE: Final = "initialize"


class Role(Enum):
    """What a session header of ours is, beside what `_meta` names."""

    ABSENT = "no header, or the wrapped server's own"
    MIRROR = "it says what `_meta` says"
    TRANSPORT = "it names a transport session"


def role(header: str | None, named: Named | None, kind: Kind | None) -> Role:
    """What the header is to a request.

    Args:
        header: The header where it looks like one of ours, else None.
        named: The session that `_meta` names, or None.
        kind: What the header's token may be used as; None where it is not authentic.

    Raises:
        SessionHeaderAlone: It is a session id of another dialect, and the body names no session.
        SessionHeaderMismatch: It is no transport id, and `_meta` names another session.
    """
    if header is None:
        return Role.ABSENT
    if named is None:
        if kind is not None and kind != TRANSPORT:
            raise SessionHeaderAlone
        return Role.TRANSPORT  # one that is not authentic is refused as a dead transport session is
    if header == named.session_id:
        return Role.MIRROR
    if kind == TRANSPORT:
        return Role.TRANSPORT
    raise SessionHeaderMismatch


def speaks_draft(message: Message) -> bool:
    """Whether the client that sends this `initialize` says that it speaks the draft, and needs no transport session."""
    try:
        params = last_members(last_members(message.body)["params"])
        return "sessions" in last_members(last_members(params["capabilities"])["experimental"])
    except (Refusal, KeyError):
        return False
