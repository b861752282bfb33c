"""Forks: what the token of a session says that was made from another one, and what ends a whole lineage.

A fork is a session of the same principal, as old as its own making, that ends by itself when its root does. So what
is kept for one member of a lineage lasts as long as for any other, and nobody gains time by forking. Nothing here
mints, and nothing asks a store.
"""

from __future__ import annotations

from typing import Any, Final, Literal, get_args

from .tokens import SESSION, Claims

Mode = Literal["share", "copy", "fresh"]
"""What a fork begins with: its parent's own data, a copy of it as it is now, or nothing."""

MODES: Final[tuple[Mode, ...]] = get_args(Mode)


def below(parent: Claims, mode: Mode) -> dict[str, Any]:
    """What the claims of a fork say, but for its own name, its making and whose it is.

    Args:
        parent: The session that it is made from.
        mode: What it begins with.
    """
    return {
        "kind": SESSION,
        "expires_at": parent.expires_at,
        "client": parent.client,
        "parent": parent.ref,
        "root": root(parent),
        "generation": parent.generation + 1,
        "owner": owner(parent) if mode == "share" else None,
    }


def root(claims: Claims) -> str:
    """The `ref` of the session at the top of the lineage, which is a session's own where it is no fork."""
    return claims.root or claims.ref


def owner(claims: Claims) -> str:
    """The `ref` of the session whose data it has, which is its own where it shares nobody's."""
    return claims.owner or claims.ref


def mark(claims: Claims) -> Claims:
    """The name under which a store is told, and asked, that all forks of a lineage have ended.

    It stands in place of a session's claims, and has the same name for every member of the lineage. No session can
    have it: a session's `jti` has no slash.

    Args:
        claims: Any member of the lineage.
    """
    return Claims(
        kind=SESSION,
        kid=claims.kid,
        jti=f"lineage/{root(claims)}",
        issued_at=claims.issued_at,
        expires_at=claims.expires_at,
        subject=claims.subject,
        audience=claims.audience,
    )
