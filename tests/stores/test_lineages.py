"""How forks stand: by themselves and with their lineage, asked in one trip."""

from __future__ import annotations

from collections.abc import Sequence

from clients import START, Clock

from mcp_sessions._session import claims as lineage
from mcp_sessions._session.claims import SESSION, Claims
from mcp_sessions.stores import _base as base
from mcp_sessions.stores._base import Standing
from mcp_sessions.stores._memory import MemoryStore

ROOT = Claims(kind=SESSION, kid="k", jti="r".ljust(22, "A"), issued_at=START, expires_at=START + 60)
ONE, TWO = (
    Claims(kid="k", jti=name.ljust(22, "A"), issued_at=START, **lineage.below(ROOT, "fresh")) for name in ("a", "b")
)
OTHER = Claims(kind=SESSION, kid="k", jti="o".ljust(22, "A"), issued_at=START, expires_at=START + 60)


class Counting(MemoryStore):
    """Counts the questions."""

    trips = 0

    async def statuses(self, claims: Sequence[Claims]) -> list[Standing]:
        self.trips += 1
        return await super().statuses(claims)


async def end(store: MemoryStore, claims: Claims) -> None:
    await store.revoke(claims.ref, audience=claims.audience, expires_at=claims.expires_at, reason="ended", lease=0)


async def test_a_fork_ends_with_its_lineage() -> None:
    """The root stands by itself, and so does a session of another lineage; one trip tells it all."""
    store = Counting(clock=Clock())
    await end(store, lineage.mark(ROOT))
    found = await base.statuses(store, [ROOT, ONE, OTHER, TWO])
    assert found == [Standing.LIVE, Standing.ENDED, Standing.LIVE, Standing.ENDED]
    assert store.trips == 1


async def test_a_fork_that_has_ended_by_itself_stays_so() -> None:
    """Whatever becomes of its lineage."""
    store = MemoryStore(clock=Clock())
    await end(store, ONE)
    assert await base.status(store, ONE) is Standing.ENDED
    assert await base.status(store, TWO) is Standing.LIVE
