"""The session metadata that requests and results carry, as the data-layer sessions draft (2026-02-23) writes it.

A request names its session in `params._meta["io.modelcontextprotocol/session"]`, and a success in `result._meta`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec
from msgspec import UNSET

from .._errors import Refusal
from .._refusals import refusal
from .._session.claims import RedactedRepr, utc
from .jsonrpc import Message
from .methods import INITIALIZE
from .strict_json import DECODE_ERRORS, NULL, Names, few_members, has_no_other_members, join, members, string


class SessionMetadata(
    RedactedRepr, msgspec.Struct, frozen=True, omit_defaults=True, gc=False, rename={"session_id": "sessionId"}
):
    """The session that a request names, unverified: the metadata as nearly every client writes it."""

    session_id: str  # a credential: never logged, and echoed only to its sender
    state: str | None = None  # the sealed state token


class SentMetadata(
    RedactedRepr, msgspec.Struct, omit_defaults=True, rename={"session_id": "sessionId", "expires_at": "expiresAt"}
):
    """The session as an answer names it."""

    session_id: str  # a credential
    expires_at: datetime  # UTC, in whole seconds
    state: str | None = None


_MEMBERS: Final = Names("sessionId", "state")

_common = msgspec.json.Decoder(SessionMetadata).decode


def parse_metadata(raw: bytes) -> SessionMetadata:
    """Read the session metadata of a request, or refuse what is not `{sessionId: string, state?: string}`."""
    try:
        found = _common(raw)
    except DECODE_ERRORS:
        return _uncommon(raw)
    return found if has_no_other_members(raw, found) else _uncommon(raw)


def _uncommon(raw: bytes) -> SessionMetadata:
    if not raw.startswith(b"{"):
        raise refusal("malformed_session")
    found = members(raw)
    _MEMBERS.check(found)
    session_id = string(found["sessionId"]) if "sessionId" in found else None
    given = found.get("state", NULL)  # null is absent, as some clients write what they do not have
    state = None if given == NULL else string(given)
    if session_id is None or (state is None and given != NULL):
        raise refusal("malformed_session")
    return SessionMetadata(session_id, state)


def metadata(session_id: str, expires_at: int, state: str | None = None) -> bytes:
    """Return the JSON of `SentMetadata`, as `sessions/create` and every echo carry it.

    The hint `expires_at` is in Unix seconds; without a new sealed state the client's own stays good.
    """
    return join(SentMetadata(session_id, utc(expires_at), state))


def instant(seconds: float) -> str:
    """Return a moment in ISO 8601, UTC."""
    return utc(int(seconds)).isoformat().replace("+00:00", "Z")


def declares_sessions(message: Message) -> bool:
    """Return whether a client declares, in `initialize` or in its envelope, that it sends session ids itself."""
    if b"sessions" not in message.body and b"\\" not in message.body:  # which could escape a letter of it
        return False
    try:
        meta = message.params.meta
        if message.method == INITIALIZE:
            capabilities = message.all_params["capabilities"]
        elif meta is None or meta.client_capabilities is UNSET:
            return False
        else:
            capabilities = meta.client_capabilities
        return "sessions" in few_members(few_members(capabilities)["experimental"])
    except (Refusal, KeyError):
        return False
