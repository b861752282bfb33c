"""The contract of deployments that share a store: the audience separates them in everything."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import pytest

from .._errors import PrincipalDataTooLarge, Refusal
from .._session.claims import ALIAS, Claims
from .._session.data import Namespace
from ..stores._base import Ended, Record, SessionStatus, Store
from ._contract import (
    ALICE,
    HOUR,
    LATER,
    START,
    Clock,
    Fixtures,
    claim,
    listed,
    refused,
    register,
    revoke,
    session,
    statuses_in,
    touch_in,
)

AUDIENCES = ("ours", "theirs", "our s", "ours 1 x", "s")


def of(audience: str, name: str, subject: str | None = ALICE, **options: Any) -> Claims:
    """Return the claims of a session of an audience."""
    claims = session(f"{name}-{audience.replace(' ', '_')}", subject=subject, **options)
    return msgspec.structs.replace(claims, audience=audience)


def shelf(claims: Claims, subject: str) -> Namespace:
    """Return a session's place for data, which counts for a principal with room for one value of 700 bytes."""
    return Namespace(claims.ref, claims.expires_at, 10_000, subject, 1000, claims.audience)


@pytest.mark.anyio
class AudienceContract(Fixtures):
    """Deployments that share a store, each with another audience, do not notice each other."""

    @pytest.mark.parametrize("subject", [ALICE, None])
    async def test_each_audience_has_its_own_number_of_sessions(self, store: Store, subject: str | None) -> None:
        """A principal, or all without one, may have as many in each; a cut-off makes room in one alone."""
        for audience in AUDIENCES:
            await store.register(Record.of(of(audience, "a", subject)), max_sessions=1)
        for audience in AUDIENCES:
            more = partial(store.register, Record.of(of(audience, "b", subject)), max_sessions=1)
            await refused(Refusal, more, match="Too many sessions")
            assert await store.count(audience=audience) == 1
        gone = of(AUDIENCES[0], "a", subject)
        await revoke(store, gone)
        await store.purge(gone.ref)
        await store.register(Record.of(of(AUDIENCES[0], "b", subject)), max_sessions=1)
        for audience in AUDIENCES[1:]:
            more = partial(store.register, Record.of(of(audience, "b", subject)), max_sessions=1)
            await refused(Refusal, more, match="Too many sessions")

    @pytest.mark.parametrize("subject", [ALICE, ""])
    async def test_each_audience_has_its_own_room_for_data(self, store: Store, subject: str) -> None:
        """A principal, or all without one, may keep as much in each; what is purged makes room in one alone."""
        for audience in AUDIENCES:
            await store.write(shelf(of(audience, "a"), subject), "k", b"x" * 700)
        full = {audience: shelf(of(audience, "b"), subject) for audience in AUDIENCES}
        for place in full.values():
            await refused(PrincipalDataTooLarge, partial(store.write, place, "k", b"x" * 700))
        await revoke(store, of(AUDIENCES[0], "a"))
        await store.purge(of(AUDIENCES[0], "a").ref)
        await store.write(full[AUDIENCES[0]], "k", b"x" * 700)
        for audience in AUDIENCES[1:]:
            await refused(PrincipalDataTooLarge, partial(store.write, full[audience], "k", b"x" * 700))

    async def test_data_that_is_over_makes_room_in_its_audience(self, store: Store, clock: Clock) -> None:
        """Whichever deployment's change sweeps it away."""
        for audience in AUDIENCES:
            await store.write(shelf(of(audience, "a"), ALICE), "k", b"x" * 700, expires_at=START + 10)
        clock.now = START + 10
        for audience in AUDIENCES:
            await store.write(shelf(of(audience, "a"), ALICE), "k", b"x" * 700)
            await refused(PrincipalDataTooLarge, partial(store.write, shelf(of(audience, "b"), ALICE), "k", b"x" * 700))

    @pytest.mark.parametrize("subject", [ALICE, None])
    async def test_a_cut_off_ends_one_audience_alone(self, store: Store, subject: str | None) -> None:
        """Whether it ends a principal's sessions or all: others are live, counted and listed, and not claimed."""
        for audience in AUDIENCES:
            await store.register(Record.of(of(audience, "a")))
        await store.revoke_before(START + 1, audience=AUDIENCES[0], subject=subject, expires_at=LATER)
        statuses = await statuses_in(store, [of(audience, "a") for audience in AUDIENCES])
        assert statuses == [SessionStatus.ENDED, *[SessionStatus.LIVE] * (len(AUDIENCES) - 1)]
        for audience in AUDIENCES[1:]:
            assert await listed(store, audience=audience) == [Record.of(of(audience, "a"))]
            assert await store.get(of(audience, "a").ref) == Record.of(of(audience, "a"))
            assert await claim(store, audience=audience) == []

    async def test_use_of_a_session_ends_by_any_name_of_its_principal(self, store: Store, clock: Clock) -> None:
        """A cut-off may name the principal without its client or issuer, in the session's audience alone."""
        names = [letter * ALIAS for letter in "xyz"]
        used = [msgspec.structs.replace(of(one, "a"), aliases="".join(names)) for one in AUDIENCES[:2]]
        for place, name in enumerate(names):
            clock.now = START + place + 1
            one, other = (msgspec.structs.replace(used[n], jti=f"{n}{place}".ljust(22, "A")) for n in (0, 1))
            one, other = (msgspec.structs.replace(made, issued_at=clock.now - 1) for made in (one, other))
            for made in (one, other):
                await store.register(Record.of(made))
                assert await touch_in(store, made, idle_timeout=900) is SessionStatus.LIVE
            await store.revoke_before(clock.now, audience=AUDIENCES[0], subject=name, expires_at=LATER)
            assert await touch_in(store, one, idle_timeout=900) is SessionStatus.ENDED
            assert await touch_in(store, other, idle_timeout=900) is SessionStatus.LIVE

    async def test_each_audience_lists_and_counts_its_own(self, store: Store, clock: Clock) -> None:
        """Also once they have ended: each is claimed for the audience that it belongs to."""
        records = {audience: replace(Record.of(of(audience, "a")), seen_at=START) for audience in AUDIENCES}
        for record in records.values():
            await store.register(record)
        for audience, record in records.items():
            assert await listed(store, audience=audience) == [record]
            assert await store.list_sessions(audience=audience, limit=100) == [record]
            assert await store.count(audience=audience) == 1
        clock.now = LATER
        for audience, record in records.items():
            assert [ended.record for ended in await claim(store, audience=audience)] == [record]
            assert await claim(store, audience=audience) == []

    async def test_each_audience_lists_and_claims_its_own_sessions(self, store: Store, clock: Clock) -> None:
        """Whether they were ended, expired or idle; one that has none is given none."""
        ones = {name: msgspec.structs.replace(session(name), audience=name) for name in "ab"}
        await register(store, *ones.values())
        await revoke(store, ones["a"], lease=0)
        assert [await listed(store, audience=name) for name in "abc"] == [[], [Record.of(ones["b"])], []]
        clock.now = LATER
        for name, expected in zip("cba", (None, "expired", "deleted"), strict=True):
            ended = [] if expected is None else [Ended(Record.of(ones[name]), expected)]
            assert await claim(store, audience=name, idle_timeout=HOUR) == ended
