"""The contract that every store keeps.

A store remembers which sessions ended before their time (a denylist by `jti`, never by token
text). It holds nothing for a live session, and it forgets a revocation once the token would have
expired anyway. Whoever breaks this contract lets deleted sessions rise from the dead.
"""

from __future__ import annotations

from typing import Protocol


class Store(Protocol):
    """Revocations, shared by every worker that verifies the same tokens."""

    async def revoke(self, jti: str, *, expires_at: int) -> None:
        """Make every request that begins after this returns see the session as revoked.

        Revoking twice is the same as once.

        Args:
            jti: The token's id.
            expires_at: When the token ends by itself, Unix seconds; the entry may go after that.

        Raises:
            StoreUnavailable: It is not certain that the revocation will be seen.
        """

    async def is_revoked(self, jti: str, *, expires_at: int) -> bool:
        """Whether the session was revoked.

        Args:
            jti: The token's id.
            expires_at: The token's own expiry, Unix seconds, as given to `revoke`.

        Raises:
            StoreUnavailable: The store cannot tell. The caller must not take that for "no".
        """

    async def close(self) -> None:
        """Let go of connections and files. The store is not used again."""
