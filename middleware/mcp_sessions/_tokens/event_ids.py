"""Event ids as clients get them: the wrapped server's own id, signed for its session, its caller and its transport.

A server with an event store finds an event by its id alone, so anyone who learns or guesses an id could read another
user's results. A signed id is `v1.<kid>.<base64url>` over a MAC (HMAC-SHA-256, 128 bits) and a MessagePack array; any
worker that has the key verifies it without a table. An id is signed alike each time, so that clients know repetitions.
Sources: MCP 2025-11-25, Streamable HTTP, "Resumability and Redelivery"; RFC 2104 (HMAC).
"""

from __future__ import annotations

import hmac
import re
from typing import Final

import msgspec

from .._errors import SessionNotFound
from .._session.claims import Claims, Kind, RedactedRepr
from .keys import Key, KeyRing, base64url, encode_fields, from_base64url

MAX_EVENT_ID_BYTES: Final = 4096
"""The longest array that is signed: servers refuse headers that are much longer."""
_MAC_BYTES: Final = 16
_SHAPE: Final = re.compile(r"v1\.([A-Za-z0-9_-]{8})\.([A-Za-z0-9_-]+)")
_MAX_CHARS: Final = 12 + ((_MAC_BYTES + MAX_EVENT_ID_BYTES) * 4 + 2) // 3


class SessionOfEvent(RedactedRepr, msgspec.Struct, frozen=True, array_like=True):
    """What a store has to know of a session, so that any worker can ask whether it lives."""

    jti: str
    issued_at: float
    expires_at: int
    kind: Kind
    aliases: str | None = None


class EventId(RedactedRepr, msgspec.Struct, frozen=True, array_like=True):
    """One event id, and what it is bound to."""

    value: bytes  # the wrapped server's own; empty for the last event of a stream that the middleware ended
    subject: str | None  # the keyed hash of its caller; None if anonymous
    transport: bytes | None = None  # the keyed hash of the wrapped server's transport session
    session: SessionOfEvent | None = None  # None for a stream outside of sessions
    call: bytes = b""  # the name of its request in the process that runs it
    request_id: bytes | None = None  # the JSON text of its request's id; None for a stream that nothing answers
    answered: bool = False  # whether the client has the answer by then


_DECODER: Final = msgspec.msgpack.Decoder(EventId)


class EventIds:
    """Signs and verifies event ids for one issuer and audience."""

    def __init__(self, *, issuer: str, audience: str) -> None:
        self._issuer: Final = issuer
        self._audience: Final = audience
        self._purpose: Final = encode_fields("mcp-sessions/event", "v1", issuer, audience)

    def sign(self, key: Key, event: EventId, server_id: str | None) -> bytes | None:
        """Return the signed id of an event that was sent by a transport session, or None if it would be too long."""
        payload = msgspec.msgpack.encode(msgspec.structs.replace(event, transport=_transport(key, server_id)))
        if len(payload) > MAX_EVENT_ID_BYTES:
            return None
        return f"v1.{key.kid}.{base64url(self._mac(key, payload) + payload)}".encode("ascii")

    def verify(self, ring: KeyRing, text: str, server_id: str | None) -> tuple[EventId, bool]:
        """Return an authentic event id, and whether it was sent by this transport session.

        Raises:
            SessionNotFound: `event_unknown`: No key of the ring has signed it.
        """
        shape = _SHAPE.fullmatch(text) if len(text) <= _MAX_CHARS else None
        key = None if shape is None else ring.get(shape[1])
        if shape is None or key is None or key.event_key is None:
            raise SessionNotFound("event_unknown")
        try:
            signed = from_base64url(shape[2])
        except ValueError:
            raise SessionNotFound("event_unknown") from None
        if not hmac.compare_digest(signed[:_MAC_BYTES], self._mac(key, signed[_MAC_BYTES:])):
            raise SessionNotFound("event_unknown")
        try:
            event = _DECODER.decode(signed[_MAC_BYTES:])
        except ValueError:  # of a later version
            raise SessionNotFound("event_unknown") from None
        return event, event.transport == _transport(key, server_id)

    def claims(self, event: EventId) -> Claims | None:
        """Return the claims of an event's session as far as a store needs them, or None outside of sessions."""
        session = event.session
        if session is None:
            return None
        return Claims(
            issuer=self._issuer,
            audience=self._audience,
            jti=session.jti,
            subject=event.subject,
            issued_at=session.issued_at,
            expires_at=session.expires_at,
            kind=session.kind,
            aliases=session.aliases,
        )

    def _mac(self, key: Key, payload: bytes) -> bytes:
        assert key.event_key is not None, "a public key signs no event ids"
        return hmac.digest(key.event_key, self._purpose + payload, "sha256")[:_MAC_BYTES]


def session_of(claims: Claims) -> SessionOfEvent:
    return SessionOfEvent(claims.jti, claims.issued_at, claims.expires_at, claims.kind, claims.aliases)


def _transport(key: Key, server_id: str | None) -> bytes | None:
    """Return a hash of the wrapped server's transport id that does not reveal it: across the bridge it is a secret."""
    if server_id is None or key.event_key is None:
        return None
    return hmac.digest(key.event_key, encode_fields("transport", server_id), "sha256")[:_MAC_BYTES]
