"""How forks stand: each by itself, and with its whole lineage, in the one question that a request asks of a store.

A session that is no fork is asked about as ever. The store knows nothing of lineages: what ends one is a revocation
under a name of its own (`lineage.mark`).
"""

from __future__ import annotations

from collections.abc import Sequence

from .. import lineage
from ..tokens import Claims
from .base import Standing, Store


async def standings(store: Store, claims: Sequence[Claims]) -> list[Standing]:
    """As `Store.standings`; a fork has also ended where all forks of its lineage have.

    Args:
        store: What is asked.
        claims: What verified tokens say.

    Raises:
        StoreUnavailable: Nobody knows.
    """
    forks = [place for place, one in enumerate(claims) if one.root is not None]
    found = await store.standings([*claims, *(lineage.mark(claims[place]) for place in forks)])
    own = found[: len(claims)]
    for place, of_lineage in zip(forks, found[len(claims) :], strict=True):
        own[place] = own[place] if of_lineage is Standing.LIVE else of_lineage
    return own


async def standing(store: Store, claims: Claims) -> Standing:
    """As `standings`, of one session."""
    (found,) = await standings(store, (claims,))
    return found
