"""The data-layer sessions draft (2026-02-23), the dialect that is always on.

A request names its session in `params._meta["io.modelcontextprotocol/session"]` and nowhere else;
a successful answer names the same session in `result._meta`. Nothing here judges whether the named
session is good, and nothing looks inside `arguments`.

The transport header, the dialect of every client of the legacy era.

A server that keeps no sessions answers `initialize` without `Mcp-Session-Id`; then we name one, and the
client sends it with every request. It is a token of its own kind: never accepted in `_meta`, as no
session id is accepted here. Nothing here verifies, and nothing here reads a request's other headers.
Source: MCP 2025-11-25, Streamable HTTP, "Session Management".
"""

from __future__ import annotations

from enum import Enum
from functools import lru_cache
from typing import Any, Final

import msgspec

from .._session.claims import TRANSPORT, Kind, RedactedRepr, utc
from ..errors import Refusal, refuse
from .jsonrpc import SESSION_KEY, Message
from .strict_json import DECODE_ERRORS, SHORTEST_MEMBER, is_all, last_members, members, string

CREATE: Final = "sessions/create"
DELETE: Final = "sessions/delete"


class SessionMetadata(
    RedactedRepr, msgspec.Struct, frozen=True, omit_defaults=True, gc=False, rename={"session_id": "sessionId"}
):
    """What a request says about its session, unverified: the metadata as nearly every client writes it.

    Args:
        session_id: The id as sent. A credential: never logged, and echoed only to its sender.
        state: The sealed state token, or None when none was sent.
    """

    session_id: str
    state: str | None = None


_FRAME: Final = len('{"sessionId":""}')
_STATE_FRAME: Final = len(',"state":""')

_common = msgspec.json.Decoder(SessionMetadata).decode

REMEMBERED: Final = 1024  # bytes of a text that is not read again; with an id and a small state most are shorter


def named(message: Message) -> SessionMetadata | None:
    """The session that a message names, or None when it names none.

    Raises:
        Refusal: `malformed_session`: The metadata is not `{sessionId: string, state?: string}`.
        Refusal: `duplicate_member`: A member of the metadata is given twice.
        Refusal: `lone_surrogate`: A value cannot be written down again.
    """
    meta = message.params.meta
    if meta is None or SESSION_KEY not in meta:
        return None
    raw = bytes(meta[SESSION_KEY])
    return _known(raw) if len(raw) <= REMEMBERED else _read(raw)


def _read(raw: bytes) -> SessionMetadata:
    try:
        found = _common(raw)
    except DECODE_ERRORS:
        return _uncommon(raw)
    # The shortest that these two can be written. A null counts as a further member, which it is not for us.
    shortest = _FRAME + len(found.session_id) + (0 if found.state is None else _STATE_FRAME + len(found.state))
    return found if len(raw) - shortest < SHORTEST_MEMBER or is_all(raw, found) else _uncommon(raw)


# A client sends the same text with each request of a session, and a text says the same each time.
_known: Final = lru_cache(maxsize=1024)(_read)


def _uncommon(raw: bytes) -> SessionMetadata:
    """As `_read`, for metadata in any other form than the common one."""
    if not raw.startswith(b"{"):
        raise refuse("malformed_session")
    metadata = members(raw)
    session_id = string(metadata["sessionId"]) if "sessionId" in metadata else None
    state = string(metadata["state"]) if "state" in metadata else None
    if session_id is None or (state is None and "state" in metadata):
        raise refuse("malformed_session")
    return SessionMetadata(session_id, state)


def metadata(session_id: str, *, expires_at: int, state: str | None) -> dict[str, Any]:
    """`SessionMetadata` of the draft, as `sessions/create` and every echo carry it.

    Args:
        session_id: The id, identical to what the client sent.
        expires_at: The hint for `expiresAt`, Unix seconds.
        state: A new state token, or None when the client's own stays good.
    """
    written = {"sessionId": session_id, "expiresAt": instant(expires_at)}
    return written if state is None else {**written, "state": state}


@lru_cache(maxsize=1024)
def instant(seconds: int) -> str:
    """A moment as the wire has it: ISO 8601, UTC. (Writing one takes longer than splicing a session in.)"""
    return utc(seconds).strftime("%Y-%m-%dT%H:%M:%SZ")


@lru_cache(maxsize=1024)
def without_state(session_id: str, expires_at: int) -> bytes:
    """JSON of `metadata` where the state did not change: the same bytes for every request of a session."""
    return encode(metadata(session_id, expires_at=expires_at, state=None))


def encode(metadata: dict[str, Any]) -> bytes:
    """JSON of `SessionMetadata`, ready to be spliced into a response."""
    return msgspec.json.encode(metadata)


INITIALIZE: Final = "initialize"


class Role(Enum):
    """What a session header of ours is, beside what `_meta` names."""

    ABSENT = "no header, or the wrapped server's own"
    MIRROR = "it says what `_meta` says"
    TRANSPORT = "it names a transport session"


def role(header: str | None, named: SessionMetadata | None, kind: Kind | None) -> Role:
    """What the header is to a request.

    Args:
        header: The header where it looks like one of ours, else None.
        named: The session that `_meta` names, or None.
        kind: What the header's token may be used as; None where it is not authentic.

    Raises:
        Refusal: `session_header_alone`: It is a session id of another dialect, and the body names no session.
        Refusal: `session_header_mismatch`: It is no transport id, and `_meta` names another session.
    """
    if header is None:
        return Role.ABSENT
    if named is None:
        if kind is not None and kind != TRANSPORT:
            raise refuse("session_header_alone")
        return Role.TRANSPORT  # one that is not authentic is refused as a dead transport session is
    if header == named.session_id:
        return Role.MIRROR
    if kind == TRANSPORT:
        return Role.TRANSPORT
    raise refuse("session_header_mismatch")


def speaks_draft(message: Message) -> bool:
    """Whether the client that sends this `initialize` says that it speaks the draft, and needs no transport session."""
    try:
        params = last_members(last_members(message.body)["params"])
        return "sessions" in last_members(last_members(params["capabilities"])["experimental"])
    except (Refusal, KeyError):
        return False
